#include "train/step_sums.h"

#include <algorithm>

#include "optim/clip.h"
#include "tensor/torch.h"

namespace osdn::train {

StepSums add_up(const StepOutcome& outcome, const Decisions& own, const optim::ParameterArena& arena,
                const DataParallel& parallel, dist::Communicator& communicator) {
  enum : size_t { kLoss, kOwnSquares, kCommonSquares, kStop, kMinutesUp, kNumFixed };
  const std::vector<double> decisions = {own.stop ? static_cast<double>(*own.stop) : 0.0,
                                         own.minutes_up ? 1.0 : 0.0};
  std::vector<at::Tensor> parts = {outcome.loss_sum.view({1}), optim::gradient_squares(arena),
                                   at::tensor(decisions, at::kDouble).to(communicator.device())};
  for (const at::Tensor& statistics : outcome.statistics) parts.push_back(statistics.reshape({-1}));
  const std::vector<std::vector<double>> rows =
      exchange(communicator, at::cat(parts), "losses, norms and decisions of the step");

  StepSums sums;
  std::vector<std::vector<double>> squares;
  double stop = 0;
  for (const std::vector<double>& row : rows) {
    sums.loss += row[kLoss];
    squares.push_back({row[kOwnSquares], row[kCommonSquares]});
    stop = std::max(stop, row[kStop]);
    if (row.size() > kNumFixed) sums.statistics.emplace_back(row.begin() + kNumFixed, row.end());
  }
  sums.squares = parallel.add_squares(squares);
  if (!outcome.statistics.empty()) sums.num_layers = outcome.statistics.front().size(0);
  if (stop > 0) sums.decisions.stop = static_cast<ExitCode>(stop);
  sums.decisions.minutes_up = rows.front()[kMinutesUp] > 0;
  return sums;
}

}  // namespace osdn::train
