// Chunk layout and decayed pair products (docs/ops/delta_rule.md, eq. 4 and 10).
#include <algorithm>

#include "ops/detail/delta_rule.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {

int64_t chunk_length(const Sequences& sequences, int64_t largest) {
  int64_t length = 1;
  while (length < largest && length < sequences.max_length()) length *= 2;
  return length;
}

at::Tensor to_chunks(const at::Tensor& x, const ChunkTable& table, int64_t num_value_heads,
                     at::ScalarType dtype) {
  const int64_t C = table.chunk_size;
  const int64_t M = table.step_begin.back();
  const int64_t H = x.size(1);
  const int64_t D = x.size(2);
  const at::Tensor wide = x.to(dtype);  // [N, H, D]
  const at::Tensor slots = M * C == x.size(0)
                               ? wide.index_select(0, table.gather)
                               : at::zeros({M * C, H, D}, wide.options()).index_copy(0, table.scatter, wide);
  const at::Tensor heads = slots.view({M, C, H, 1, D}).expand({M, C, H, num_value_heads / H, D});
  return heads.permute({0, 2, 3, 1, 4}).reshape({M * num_value_heads, C, D});
}

at::Tensor from_chunks(const at::Tensor& x, const ChunkTable& table, int64_t num_value_heads) {
  const int64_t C = table.chunk_size;
  const int64_t M = table.step_begin.back();
  const int64_t D = x.size(2);
  const at::Tensor slots =
      x.view({M, num_value_heads, C, D}).transpose(1, 2).reshape({M * C, num_value_heads, D});
  return slots.index_select(0, table.scatter);
}

PairDecay::PairDecay(const at::Tensor& log_decay, at::ScalarType dtype) : dtype_(dtype) {
  if (!log_decay.defined()) return;
  kind_ = log_decay.size(2) == 1 ? Kind::kScalar : Kind::kChannel;
  const int64_t C = log_decay.size(1);
  sums_ = log_decay.to(at::kDouble).clamp_min(kSmallestLogDecay).cumsum(1);
  const at::Tensor last = sums_.narrow(1, C - 1, 1);  // [B, 1, 1 or K]: padding slots have log-decay 0
  from_start = sums_.to(dtype).exp();
  to_end = (last - sums_).to(dtype).exp();
  whole = last.to(dtype).exp().transpose(1, 2);
  if (kind_ != Kind::kScalar) return;
  // The mask comes before exp: above the diagonal the exponent is positive and may overflow.
  const at::Tensor above = at::ones({C, C}, log_decay.options().dtype(at::kBool)).triu(1);
  pairs_ = (sums_ - sums_.transpose(1, 2)).to(dtype).masked_fill(above, -INFINITY).exp().unsqueeze(1);
}

// Rows of block 2p + 1 against columns of block 2p, blocks of b tokens: together with the diagonal, all
// levels b = 1, 2, 4, .. cover every pair once. The anchor is the last column token, so both factors have
// exponents <= 0 and no row depends on a later gate.
struct PairDecay::Level {
  int64_t B, P, b, K;
  at::Tensor row;  // [B, P, 1, b, K] exp(G_r - anchor)
  at::Tensor col;  // [B, P, b, K] exp(anchor - G_s)

  // x [B, 2, C, K] -> its decayed row blocks, the two stacked: [B * P, 2 * b, K]
  at::Tensor rows_of(const at::Tensor& x) const {
    const at::Tensor blocks = x.view({B, 2, P, 2, b, K}).select(3, 1).transpose(1, 2);  // [B, P, 2, b, K]
    return (blocks * row).reshape({B * P, 2 * b, K});
  }
  // y [B, C, K] -> its decayed column blocks: [B * P, b, K]
  at::Tensor cols_of(const at::Tensor& y) const {
    return (y.view({B, P, 2, b, K}).select(2, 0) * col).reshape({B * P, b, K});
  }
  // The blocks' places in pairs [B, 2, C, C]: a view [B, 2, b, b, P].
  at::Tensor places_in(const at::Tensor& pairs) const {
    return pairs.view({B, 2, P, 2, b, P, 2, b}).select(6, 0).select(3, 1).diagonal(0, 2, 4);
  }
};

PairDecay::Level PairDecay::level(int64_t b) const {
  const int64_t B = sums_.size(0);
  const int64_t P = sums_.size(1) / (2 * b);
  const int64_t K = sums_.size(2);
  const at::Tensor blocks = sums_.view({B, P, 2, b, K});
  const at::Tensor columns = blocks.select(2, 0);         // [B, P, b, K]
  const at::Tensor anchor = columns.narrow(2, b - 1, 1);  // [B, P, 1, K]
  return {.B = B,
          .P = P,
          .b = b,
          .K = K,
          .row = (blocks.select(2, 1) - anchor).to(dtype_).exp().unsqueeze(2),
          .col = (anchor - columns).to(dtype_).exp()};
}

at::Tensor PairDecay::gram(const at::Tensor& x, const at::Tensor& y) const {
  const int64_t B = y.size(0);
  const int64_t C = y.size(1);
  const int64_t K = y.size(2);
  if (kind_ != Kind::kChannel) {
    const at::Tensor all = at::bmm(x.reshape({B, 2 * C, K}), y.transpose(1, 2)).view({B, 2, C, C});
    return kind_ == Kind::kNone ? all.tril() : all * pairs_;
  }
  at::Tensor pairs = at::zeros({B, 2, C, C}, y.options());
  pairs.diagonal(0, 2, 3).copy_((x * y.unsqueeze(1)).sum(-1));
  for (int64_t b = 1; b < C; b *= 2) {
    const Level at_b = level(b);
    const at::Tensor block = at::bmm(at_b.rows_of(x), at_b.cols_of(y).transpose(1, 2));  // [B * P, 2 * b, b]
    at_b.places_in(pairs).copy_(block.view({B, at_b.P, 2, b, b}).permute({0, 2, 3, 4, 1}));
  }
  return pairs;
}

// Sums over the tokens of a chunk that only add what belongs to them: a difference of two larger sums would
// leave rounding where the true gradient of a strong decay is tiny.
at::Tensor sum_from(const at::Tensor& x, int64_t dim) { return x.flip({dim}).cumsum(dim).flip({dim}); }
at::Tensor sum_before(const at::Tensor& x, int64_t dim) {
  const int64_t length = x.size(dim);
  return at::cat({at::zeros_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, length - 1).cumsum(dim)}, dim);
}

void PairDecay::add_gram_gradients(const at::Tensor& d_gram, const at::Tensor& gram, const at::Tensor& x,
                                   const at::Tensor& y, PairGradients& out) const {
  const int64_t B = y.size(0);
  const int64_t C = y.size(1);
  const int64_t K = y.size(2);
  if (kind_ != Kind::kChannel) {
    const at::Tensor weights = (kind_ == Kind::kNone ? d_gram : d_gram * pairs_).view({B, 2 * C, C});
    out.x.view({B, 2 * C, K}).baddbmm_(weights, y);
    out.y.baddbmm_(weights.transpose(1, 2), x.view({B, 2 * C, K}));
    if (kind_ == Kind::kNone) return;
    // Token t decays the pairs with s < t <= r.
    const at::Tensor pairs = (d_gram * gram).sum(1);  // [B, C, C]
    out.log_decay.add_(sum_before(pairs, 2).tril_().sum(1).unsqueeze(-1));
    return;
  }
  const at::Tensor diagonal = d_gram.diagonal(0, 2, 3).unsqueeze(-1);  // [B, 2, C, 1]
  out.x.addcmul_(diagonal, y.unsqueeze(1));
  out.y.add_((diagonal * x).sum(1));
  for (int64_t b = 1; b < C; b *= 2) {
    const Level at_b = level(b);
    const int64_t P = at_b.P;
    const at::Tensor block = at_b.places_in(d_gram).permute({0, 4, 1, 2, 3}).reshape({B * P, 2 * b, b});
    const at::Tensor to_rows = at::bmm(block, at_b.cols_of(y)).view({B, P, 2, b, K}) * at_b.row;
    const at::Tensor rows = x.view({B, 2, P, 2, b, K}).select(3, 1).transpose(1, 2);  // [B, P, 2, b, K]
    out.x.view({B, 2, P, 2, b, K}).select(3, 1).add_(to_rows.transpose(1, 2));
    const at::Tensor to_columns =
        at::bmm(block.transpose(1, 2), at_b.rows_of(x)).view({B, P, b, K}) * at_b.col;
    const at::Tensor columns = y.view({B, P, 2, b, K}).select(2, 0);  // [B, P, b, K]
    out.y.view({B, P, 2, b, K}).select(2, 0).add_(to_columns);
    // A token of the row block decays the pairs of its own and later rows, one of the column block those of
    // earlier columns.
    const at::Tensor log_decay = out.log_decay.view({B, P, 2, b, K});
    log_decay.select(2, 1).add_(sum_from((rows * to_rows).sum(2), 2));
    log_decay.select(2, 0).add_(sum_before(columns * to_columns, 2));
  }
}

}  // namespace osdn::ops::delta_rule_detail
