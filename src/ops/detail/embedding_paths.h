// The table's gradient behind ops/embedding.h by the CUDA kernels: bf16 or float32 rows of a width that is a
// multiple of four.
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops::embedding_detail {

/// table [V, D]; dy [N, D].
bool on_kernel_path(const at::Tensor& table, const at::Tensor& dy);

/// table[ids[n]] += dy[n] in the order of n, ids [N] int64.
void add_rows_kernel(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& dy);

}  // namespace osdn::ops::embedding_detail
