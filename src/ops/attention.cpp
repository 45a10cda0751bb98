#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace attention_detail {

// B: queries of a block; L: keys that a block sees; G = H / HK.

// Queries at once: bounds the scores to B x G x L. Counted from the start of what is attended, so that a
// sequence read in pieces of a multiple of it meets the same blocks.
constexpr int64_t kBlock = 64;
constexpr int64_t kLargestFlashHead = 256;

/// One block of queries of one sequence and the keys that it sees, in the accumulation dtype.
struct Block {
  int64_t query_begin = 0;  // rows of q
  int64_t query_count = 0;
  int64_t key_begin = 0;  // rows of k and v
  int64_t key_count = 0;
  int64_t first_position = 0;  // of the first query among the sequence's keys
  int64_t first_key = 0;       // position of the first key
};

std::vector<Block> blocks_of(const AttentionArgs& args) {
  std::vector<Block> blocks;
  const auto& queries = args.queries->host_offsets();
  const auto& keys = args.keys->host_offsets();
  for (size_t s = 0; s + 1 < queries.size(); ++s) {
    const int64_t count = queries[s + 1] - queries[s];
    const int64_t before = (keys[s + 1] - keys[s]) - count;  // keys older than the queries
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t end = std::min(count, begin + kBlock);
      const int64_t first =
          args.window_size > 0 ? std::max<int64_t>(0, before + begin - args.window_size + 1) : 0;
      blocks.push_back({.query_begin = queries[s] + begin,
                        .query_count = end - begin,
                        .key_begin = keys[s] + first,
                        .key_count = before + end - first,
                        .first_position = before + begin,
                        .first_key = first});
    }
  }
  return blocks;
}

/// [B, H, D] -> [HK, B * G, D]
at::Tensor by_key_head(const at::Tensor& x, int64_t key_heads) {
  return x.unflatten(1, {key_heads, -1}).transpose(0, 1).flatten(1, 2);
}

/// [HK, B * G, D] -> [B, H, D]
at::Tensor by_token(const at::Tensor& x, int64_t tokens) {
  return x.unflatten(1, {tokens, -1}).transpose(0, 1).flatten(1, 2);
}

/// Softmax weights [HK, B * G, L] of q [HK, B * G, D] with k [HK, L, D] (eq. 1).
at::Tensor weights_of(const Block& block, const at::Tensor& q, const at::Tensor& k, int64_t window,
                      double scale) {
  const auto options = at::TensorOptions(at::kLong).device(q.device());
  const at::Tensor position =
      (at::arange(block.query_count, options) + block.first_position).unsqueeze(1);              // [B, 1]
  const at::Tensor key = (at::arange(block.key_count, options) + block.first_key).unsqueeze(0);  // [1, L]
  at::Tensor hidden = key > position;                                                            // [B, L]
  if (window > 0) hidden = hidden.logical_or(key <= position - window);
  const int64_t group = q.size(1) / block.query_count;
  const at::Tensor mask = hidden.repeat_interleave(group, 0);  // [B * G, L]
  const at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * scale;
  return at::softmax(scores.masked_fill(mask, -std::numeric_limits<double>::infinity()), -1);
}

double scale_of(const at::Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(2))); }

bool uses_flash(const at::Tensor& q) {
  return q.is_cuda() && q.scalar_type() == at::kBFloat16 && q.size(2) % 8 == 0 &&
         q.size(2) <= kLargestFlashHead && q.size(0) > 0;
}

struct HeldArgs : torch::CustomClassHolder {
  explicit HeldArgs(AttentionArgs held) : args(std::move(held)) {}
  AttentionArgs args;  // without the tensors
};

std::optional<int64_t> window_left(const AttentionArgs& args) {
  return args.window_size > 0 ? std::optional(args.window_size - 1) : std::nullopt;
}

/// Sequence by sequence: for all at once the keys of one are divided among blocks by how many there are.
at::Tensor forward_flash_apart(const AttentionArgs& args) {
  at::Tensor out = at::empty_like(args.q, at::MemoryFormat::Contiguous);
  const auto& queries = args.queries->host_offsets();
  const auto& keys = args.keys->host_offsets();
  for (size_t s = 0; s + 1 < queries.size(); ++s) {
    const int64_t count = queries[s + 1] - queries[s];
    const int64_t key_count = keys[s + 1] - keys[s];
    if (count == 0) continue;
    const auto one = at::_flash_attention_forward(
        args.q.narrow(0, queries[s], count).unsqueeze(0), args.k.narrow(0, keys[s], key_count).unsqueeze(0),
        args.v.narrow(0, keys[s], key_count).unsqueeze(0), std::nullopt, std::nullopt, count, key_count,
        /*dropout_p=*/0.0,
        /*is_causal=*/true, /*return_debug_mask=*/false, std::optional<double>(scale_of(args.q)),
        window_left(args), std::optional<int64_t>(0));
    out.narrow(0, queries[s], count).copy_(std::get<0>(one).squeeze(0));
  }
  return out;
}

torch::autograd::variable_list forward_flash(const AttentionArgs& args) {
  const auto out = at::_flash_attention_forward(
      args.q, args.k, args.v, args.queries->offsets().to(at::kInt), args.keys->offsets().to(at::kInt),
      args.queries->max_length(), args.keys->max_length(), /*dropout_p=*/0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false, std::optional<double>(scale_of(args.q)), window_left(args),
      std::optional<int64_t>(0));
  return {std::get<0>(out), std::get<1>(out), std::get<2>(out), std::get<3>(out)};
}

at::Tensor forward_blocks(const AttentionArgs& args) {
  const at::ScalarType type = accumulation_type(args.q.scalar_type());
  const int64_t key_heads = args.k.size(1);
  at::Tensor out = at::empty_like(args.q, at::MemoryFormat::Contiguous);
  for (const Block& block : blocks_of(args)) {
    const at::Tensor q =
        by_key_head(args.q.narrow(0, block.query_begin, block.query_count).to(type), key_heads);
    const at::Tensor k = args.k.narrow(0, block.key_begin, block.key_count).to(type).transpose(0, 1);
    const at::Tensor v = args.v.narrow(0, block.key_begin, block.key_count).to(type).transpose(0, 1);
    const at::Tensor p = weights_of(block, q, k, args.window_size, scale_of(args.q));
    out.narrow(0, block.query_begin, block.query_count)
        .copy_(by_token(at::matmul(p, v), block.query_count));  // (eq. 2)
  }
  return out;
}

/// dq, dk, dv
torch::autograd::variable_list backward_blocks(const AttentionArgs& args, const at::Tensor& dout) {
  const at::ScalarType type = accumulation_type(args.q.scalar_type());
  const int64_t key_heads = args.k.size(1);
  const double scale = scale_of(args.q);
  at::Tensor dq = at::empty_like(args.q, at::MemoryFormat::Contiguous);
  at::Tensor dk = at::zeros(args.k.sizes(), args.k.options().dtype(type));
  at::Tensor dv = at::zeros_like(dk);
  for (const Block& block : blocks_of(args)) {
    const auto queries = [&](const at::Tensor& x) {
      return by_key_head(x.narrow(0, block.query_begin, block.query_count).to(type), key_heads);
    };
    const auto keys = [&](const at::Tensor& x) { return x.narrow(0, block.key_begin, block.key_count); };
    const at::Tensor q = queries(args.q);
    const at::Tensor k = keys(args.k).to(type).transpose(0, 1);  // [HK, L, D]
    const at::Tensor v = keys(args.v).to(type).transpose(0, 1);
    const at::Tensor dy = queries(dout);  // [HK, B * G, D]
    const at::Tensor p = weights_of(block, q, k, args.window_size, scale);
    const at::Tensor dp = at::matmul(dy, v.transpose(1, 2));                      // [HK, B * G, L]
    const at::Tensor ds = p * (dp - (dp * p).sum(-1, /*keepdim=*/true)) * scale;  // (eq. 3)
    keys(dv).add_(at::matmul(p.transpose(1, 2), dy).transpose(0, 1));
    keys(dk).add_(at::matmul(ds.transpose(1, 2), q).transpose(0, 1));
    dq.narrow(0, block.query_begin, block.query_count).copy_(by_token(at::matmul(ds, k), block.query_count));
  }
  return {dq, dk.to(args.k.scalar_type()), dv.to(args.v.scalar_type())};
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const c10::intrusive_ptr<HeldArgs>& held) {
    ctx->saved_data["held"] = c10::IValue::make_capsule(held);
    AttentionArgs args = held->args;
    args.q = q, args.k = k, args.v = v;
    if (!uses_flash(q)) {
      ctx->save_for_backward({q, k, v});
      return forward_blocks(args);
    }
    const torch::autograd::variable_list out = forward_flash(args);
    ctx->save_for_backward({q, k, v, out[0], out[1], out[2], out[3]});
    return out[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    AttentionArgs args = static_cast<const HeldArgs&>(*ctx->saved_data["held"].toCapsule()).args;
    args.q = saved[0], args.k = saved[1], args.v = saved[2];
    if (!uses_flash(args.q)) {
      torch::autograd::variable_list out = backward_blocks(args, gradients[0]);
      out.emplace_back();
      return out;
    }
    const auto out = at::_flash_attention_backward(
        gradients[0].contiguous(), args.q, args.k, args.v, saved[3], saved[4],
        args.queries->offsets().to(at::kInt), args.keys->offsets().to(at::kInt), args.queries->max_length(),
        args.keys->max_length(), /*dropout_p=*/0.0, /*is_causal=*/true, saved[5], saved[6],
        std::optional<double>(scale_of(args.q)), window_left(args), std::optional<int64_t>(0));
    return {std::get<0>(out), std::get<1>(out), std::get<2>(out), {}};
  }
};

}  // namespace attention_detail

at::Tensor attention(const AttentionArgs& args) {
  constexpr const char* kOp = "attention";
  if (!args.queries || !args.keys)
    throw UserError("{}: sequences: expected the offsets of queries and keys, got none", kOp);
  const int64_t M = args.keys->num_tokens();
  check_shape(kOp, "q", args.q, {args.queries->num_tokens(), -1, -1});
  check_dtype(kOp, "q", args.q, {at::kFloat, at::kBFloat16, at::kDouble});
  for (const auto& [name, tensor] : {std::pair("k", &args.k), std::pair("v", &args.v)}) {
    check_shape(kOp, name, *tensor, {M, args.k.size(1), args.q.size(2)});
    check_dtype(kOp, name, *tensor, {args.q.scalar_type()});
    check_same_device(kOp, name, *tensor, args.q);
  }
  if (args.k.size(1) == 0 || args.q.size(1) % args.k.size(1) != 0)
    throw UserError("{}: k: expected a divisor of the {} query heads, got {}", kOp, args.q.size(1),
                    args.k.size(1));
  const auto& queries = args.queries->host_offsets();
  const auto& keys = args.keys->host_offsets();
  bool fits = queries.size() == keys.size();
  for (size_t s = 0; fits && s + 1 < queries.size(); ++s)
    fits = keys[s + 1] - keys[s] >= queries[s + 1] - queries[s];
  if (!fits) throw UserError("{}: keys: expected at least as many keys as queries in every sequence", kOp);
  if (SequencesApart::holds_for(args.q) && attention_detail::uses_flash(args.q))
    return attention_detail::forward_flash_apart(args);
  AttentionArgs settings{.queries = args.queries, .keys = args.keys, .window_size = args.window_size};
  return attention_detail::AttentionFunction::apply(
      args.q, args.k, args.v, c10::make_intrusive<attention_detail::HeldArgs>(std::move(settings)));
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, double theta) {
  check_shape("rotary", "x", x, {-1, -1, -1});
  check_shape("rotary", "positions", positions, {x.size(0)});
  const int64_t half = x.size(2) / 2;
  if (x.size(2) % 2 != 0) throw UserError("rotary: x: expected an even head size, got {}", x.size(2));
  const at::ScalarType type = accumulation_type(x.scalar_type());
  const at::Tensor exponent = at::arange(half, at::TensorOptions(type).device(x.device())) * (-1.0 / half);
  const at::Tensor angle = positions.to(type).unsqueeze(1) * at::pow(theta, exponent);  // [N, D / 2]
  const at::Tensor cosine = angle.cos().to(x.scalar_type()).unsqueeze(1);               // [N, 1, D / 2]
  const at::Tensor sine = angle.sin().to(x.scalar_type()).unsqueeze(1);
  const at::Tensor a = x.narrow(2, 0, half);
  const at::Tensor b = x.narrow(2, half, half);
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, 2);  // (eq. 4)
}

at::Tensor positions_of(const Sequences& sequences, const std::vector<int64_t>& start, at::Device device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const at::Tensor& offsets = sequences.offsets();  // [S + 1]
  const int64_t S = sequences.num_sequences();
  const int64_t N = sequences.num_tokens();
  at::Tensor zero = offsets.narrow(0, 0, S);  // the row at which a sequence's positions are counted from 0
  if (!start.empty()) zero = zero - at::tensor(start, at::kLong).to(device);
  return at::arange(N, options) - at::repeat_interleave(zero, at::diff(offsets), 0, N);
}

}  // namespace osdn::ops
