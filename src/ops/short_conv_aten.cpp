// The convolution as shifts of one long array in which every sequence is preceded by its W history slots
// (zeros without a history): the taps of a token then never reach into another sequence, and no masks are
// needed.
#include <algorithm>
#include <vector>

#include "ops/detail/short_conv_paths.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops::short_conv_detail {
namespace {

// Row numbers in the long array of E = N + S * W rows.
struct Layout {
  int64_t num_rows;        // E
  at::Tensor token_row;    // [N]
  at::Tensor history_row;  // [S * W] the slots in front of each sequence
  at::Tensor final_row;  // [S * W] the last W rows of each sequence: its end, or history where it is shorter
};

Layout make_layout(const Sequences& sequences, int64_t num_taps) {
  const at::Tensor& offsets = sequences.offsets();  // [S + 1]
  const int64_t num_sequences = sequences.num_sequences();
  const int64_t num_tokens = sequences.num_tokens();
  const at::Tensor tokens = at::arange(num_tokens, offsets.options());
  // The sequence of a token is the last one that starts at or before it; empty ones in front share that
  // start.
  const at::Tensor sequence =
      at::searchsorted(offsets, tokens, /*out_int32=*/false, /*right=*/true) - 1;     // [N]
  const at::Tensor slots = at::arange(num_taps, offsets.options());                   // [W]
  const at::Tensor before = at::arange(num_sequences, offsets.options()) * num_taps;  // [S]
  const at::Tensor begin = offsets.narrow(0, 0, num_sequences) + before;
  const at::Tensor end = offsets.narrow(0, 1, num_sequences) + before;
  return {.num_rows = num_tokens + num_sequences * num_taps,
          .token_row = tokens + (sequence + 1) * num_taps,
          .history_row = (begin.unsqueeze(1) + slots).flatten(),
          .final_row = (end.unsqueeze(1) + slots).flatten()};
}

// [S, D, W] <-> [S * W, D]
at::Tensor slots_to_rows(const at::Tensor& state) {
  return state.transpose(1, 2).reshape({-1, state.size(1)});
}

at::Tensor rows_to_slots(const at::Tensor& rows, int64_t num_sequences, int64_t num_taps) {
  return rows.view({num_sequences, num_taps, rows.size(1)}).transpose(1, 2).contiguous();
}

at::Tensor long_array(const Inputs& in, const Layout& layout) {
  at::Tensor rows = at::zeros({layout.num_rows, in.x.size(1)}, in.x.options());  // [E, D]
  rows.index_copy_(0, layout.token_row, in.x);
  if (in.history.defined()) rows.index_copy_(0, layout.history_row, slots_to_rows(in.history));
  return rows;
}

// The sums before SiLU at the tokens (eq. 1), accumulation dtype: [N, D].
at::Tensor filter(const Inputs& in, const at::Tensor& rows, const Layout& layout) {
  const int64_t num_taps = in.taps.size(0);
  const int64_t num_rows = rows.size(0);
  at::Tensor sum =
      at::zeros({num_rows, rows.size(1)}, rows.options().dtype(in.taps.scalar_type()));  // [E, D]
  for (int64_t tap = 0; tap < num_taps; ++tap) {
    const int64_t lag = num_taps - 1 - tap;
    if (lag >= num_rows) continue;
    sum.narrow(0, lag, num_rows - lag).add_(rows.narrow(0, 0, num_rows - lag) * in.taps[tap]);
  }
  return sum.index_select(0, layout.token_row);
}

}  // namespace

Outputs forward_aten(const Inputs& in) {
  const int64_t num_taps = in.taps.size(0);
  const Layout layout = make_layout(*in.sequences, num_taps);
  const at::Tensor rows = long_array(in, layout);
  at::Tensor y = filter(in, rows, layout);
  if (in.silu) y = at::silu(y);  // (eq. 2)
  const at::Tensor final_rows = rows.index_select(0, layout.final_row);
  return {y.to(in.x.scalar_type()), rows_to_slots(final_rows, in.sequences->num_sequences(), num_taps)};
}

Gradients backward_aten(const Inputs& in, const at::Tensor& dy, const at::Tensor& dfinal) {
  const int64_t num_taps = in.taps.size(0);
  const int64_t num_channels = in.x.size(1);
  const at::ScalarType type = in.taps.scalar_type();
  const Layout layout = make_layout(*in.sequences, num_taps);
  const at::Tensor rows = long_array(in, layout);
  at::Tensor dsum = dy.to(type);  // [N, D]
  if (in.silu) {
    const at::Tensor sum = filter(in, rows, layout);
    const at::Tensor s = at::sigmoid(sum);
    dsum = dsum * s * (1 + sum * (1 - s));  // (eq. 3)
  }
  const int64_t num_rows = layout.num_rows;
  const at::Tensor dsum_rows = at::zeros({num_rows, num_channels}, dsum.options());  // [E, D]
  dsum_rows.index_copy_(0, layout.token_row, dsum);
  const at::Tensor drows = at::zeros_like(dsum_rows);  // [E, D]
  std::vector<at::Tensor> dtaps;
  for (int64_t tap = 0; tap < num_taps; ++tap) {
    const int64_t lag = num_taps - 1 - tap;
    const int64_t count = std::max<int64_t>(0, num_rows - lag);
    const at::Tensor from = dsum_rows.narrow(0, num_rows - count, count);
    dtaps.push_back(sum_rows(from * rows.narrow(0, 0, count)));  // (eq. 5)
    drows.narrow(0, 0, count).add_(from * in.taps[tap]);         // (eq. 4)
  }
  // The rows of one final state are distinct, and so are those of different sequences: no two adds meet.
  if (dfinal.defined()) drows.index_add_(0, layout.final_row, slots_to_rows(dfinal).to(type));  // (eq. 6)
  Gradients out{.dx = drows.index_select(0, layout.token_row).to(in.x.scalar_type()),
                .dtaps = at::stack(dtaps),
                .dhistory = {}};
  if (in.history.defined())
    out.dhistory =
        rows_to_slots(drows.index_select(0, layout.history_row), in.sequences->num_sequences(), num_taps)
            .to(in.x.scalar_type());
  return out;
}

}  // namespace osdn::ops::short_conv_detail
