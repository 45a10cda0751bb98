// What ranks tell each other in a step, counted: how often, and in which precision.
#include <map>
#include <memory>
#include <string>

#include "tests/train/graph_runs.h"

namespace osdn::train {
namespace accumulation_test {

/// Collectives of a run by what they move, without numbers, e.g. "gradients of bucket float".
using Counts = std::map<std::string, int64_t>;

/// A world of one over Gloo that counts what is started.
class Counting : public dist::Communicator {
 public:
  Counting(std::unique_ptr<dist::Communicator> whole, Counts& counts)
      : whole_(std::move(whole)), counts_(counts) {}
  int64_t rank() const override { return whole_->rank(); }
  int64_t world_size() const override { return whole_->world_size(); }
  at::Device device() const override { return whole_->device(); }
  void set_step(int64_t step) override { whole_->set_step(step); }
  void check() override { whole_->check(); }
  std::unique_ptr<dist::Board> open_board() override { return whole_->open_board(); }

 protected:
  std::unique_ptr<dist::PendingCollective> launch(const dist::Collective& collective) override {
    std::string name = collective.what.substr(0, collective.what.find_first_of("0123456789"));
    if (collective.range.defined()) name += c10::toString(collective.range.scalar_type());
    ++counts_[name];
    return whole_->start(collective);
  }

 private:
  std::unique_ptr<dist::Communicator> whole_;
  Counts& counts_;
};

/// Of a run of three steps of eight sequences, in micro-batches of so many.
Counts counts_of(const TrainFolder& folder, int64_t zero, int64_t micro_batch) {
  config::Config config = folder.config(fmt::format("zero-{}-micro-{}", zero, micro_batch),
                                        config::Device::kCpu, config::Precision::kBfloat16);
  config.data.sequence_length = 16;
  config.train.steps = 3;
  config.train.global_batch_tokens = 8 * 16;
  config.evaluation.sequences = 1;
  config.train.micro_batch_sequences = micro_batch;
  config.distributed.zero = zero;
  Counts counts;
  const ExitCode code =
      train(config, {}, {},
            [&](const dist::LaunchEnvironment& launched, at::Device device,
                std::chrono::seconds timeout) -> std::unique_ptr<dist::Communicator> {
              return std::make_unique<Counting>(connect_one(launched, device, timeout), counts);
            });
  REQUIRE(code == ExitCode::kDone);
  return counts;
}

}  // namespace accumulation_test

TEST_CASE("a global batch in eight micro-batches communicates no more than in one, gradients in fp32",
          "[accumulation]") {
  namespace t = accumulation_test;
  const TrainFolder folder;
  for (const int64_t zero : {0, 1}) {
    const t::Counts whole = t::counts_of(folder, zero, 8);
    const t::Counts accumulated = t::counts_of(folder, zero, 1);
    CHECK(whole == accumulated);
    // Every bucket once a step; of weights, which are shared out with ZeRO-1 alone, the parts in bf16.
    REQUIRE(whole.count("gradients of bucket Float") == 1);
    const int64_t sums = whole.at("gradients of bucket Float");
    CHECK(sums > 3);
    CHECK(sums % 3 == 0);
    CHECK(whole.count("gradients of bucket BFloat16") == 0);
    CHECK(whole.count("weights of bucket BFloat16") == static_cast<size_t>(zero));
    if (zero == 1) CHECK(whole.at("weights of bucket BFloat16") == sums);
    CHECK(whole.at("losses, norms and decisions of the stepDouble") == 3);
  }
}

}  // namespace osdn::train
