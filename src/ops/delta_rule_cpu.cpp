// The chunk form on the CPU, without decay or with scalar decay: one task per sequence and head, chunk after
// chunk with everything of a chunk in cache (docs/ops/delta_rule.md, eq. 4-6). The bits do not depend on the
// number of threads.
#include <algorithm>

#include "ops/detail/delta_rule_cpu.h"
#include "tensor/torch.h"

namespace osdn::ops::delta_rule_detail {
namespace {

template <typename T>
Forward forward_typed(const Problem& problem, bool keep) {
  const Inputs<T> in(problem);
  const int64_t N = problem.v.size(0);
  const auto options = problem.v.options().dtype(at::CppTypeToScalarType<T>::value);
  const at::Tensor o = at::empty({N, in.HV, in.V}, options);
  const at::Tensor final_state =
      problem.initial_state.defined()
          ? problem.initial_state.detach().to(options).clone(at::MemoryFormat::Contiguous)
          : at::zeros({in.S, in.HV, in.K, in.V}, options);
  const at::Tensor error = at::empty({keep ? N : 0, in.HV, in.V}, options);
  const at::Tensor states = at::empty({keep ? in.first_chunk.back() : 0, in.HV, in.Kp, in.Vp}, options);
  T* o_data = o.mutable_data_ptr<T>();
  T* final_data = final_state.mutable_data_ptr<T>();
  T* error_data = error.mutable_data_ptr<T>();
  T* states_data = states.mutable_data_ptr<T>();
  at::parallel_for(0, in.S * in.HV, 1, [&](int64_t first, int64_t last) {
    Arena<T> arena(Chunk<T>::elements(in) + in.Kp * in.Vp + 2 * kChunk * in.Vp);
    Chunk<T> chunk(in, arena);
    T* state = arena.take(in.Kp * in.Vp);
    T* out = arena.take(kChunk * in.Vp);
    T* work = arena.take(kChunk * in.Vp);
    for (int64_t task = first; task < last; ++task) {
      const int64_t sequence = task / in.HV;
      const int64_t head = task % in.HV;
      T* own_state = final_data + task * in.K * in.V;
      pack(own_state, in.V, in.K, in.V, state, in.Kp, in.Vp);
      for (int64_t j = 0; j < in.num_chunks(sequence); ++j) {
        const int64_t done = j * kChunk;
        chunk.load(in.begin(sequence) + done, std::min(kChunk, in.length(sequence) - done), head);
        if (keep) std::copy_n(state, in.Kp * in.Vp, states_data + in.state_at(sequence, j, head));
        chunk.solve(state, work);
        gemm<T>({.m = chunk.rows,
                 .n = in.Vp,
                 .k = in.Kp,
                 .a = chunk.q,
                 .a_row = in.Kp,
                 .b = state,
                 .b_row = in.Vp,
                 .c = out,
                 .c_row = in.Vp});
        scale_rows(out, chunk.from_start, in.scale, chunk.rows, in.Vp, out);
        gemm<T>({.m = chunk.rows,
                 .n = in.Vp,
                 .k = chunk.rows,
                 .a = chunk.p,
                 .a_row = kChunk,
                 .b = chunk.u,
                 .b_row = in.Vp,
                 .c = out,
                 .c_row = in.Vp,
                 .accumulate = true,
                 .skip = Skip::kUpperA});
        for (int64_t r = 0; r < chunk.count; ++r) {
          const int64_t to = ((chunk.token + r) * in.HV + head) * in.V;
          std::copy_n(out + r * in.Vp, in.V, o_data + to);
          if (keep) std::copy_n(chunk.e + r * in.Vp, in.V, error_data + to);
        }
        chunk.advance(state, work);
      }
      for (int64_t i = 0; i < in.K; ++i) std::copy_n(state + i * in.Vp, in.V, own_state + i * in.V);
    }
  });
  Forward result{.o = o.to(problem.v.scalar_type()),
                 .final_state = final_state,
                 .inverse = {},
                 .error = {},
                 .states = {}};
  if (keep) {
    result.error = error;
    result.states = states;
  }
  return result;
}

}  // namespace

Forward forward_cpu(const Problem& problem, bool keep) {
  return problem.v.scalar_type() == at::kDouble ? forward_typed<double>(problem, keep)
                                                : forward_typed<float>(problem, keep);
}

}  // namespace osdn::ops::delta_rule_detail
