// The embedding table's gradient by the CUDA kernels (kernels/embedding.h): tokens sorted by their ids, and
// the kernels' arguments.
#include "kernels/embedding.h"

#include "ops/detail/embedding_paths.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::embedding_detail {

bool on_kernel_path(const at::Tensor& table, const at::Tensor& dy) {
  const bool typed = dy.scalar_type() == at::kBFloat16 || dy.scalar_type() == at::kFloat;
  return table.is_cuda() && table.scalar_type() == at::kFloat && typed && table.is_contiguous() &&
         table.size(1) % kernels::kEmbeddingChannels == 0 &&
         reinterpret_cast<uintptr_t>(table.data_ptr()) % 16 == 0 && compute_capability() >= 80;
}

void add_rows_kernel(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& dy) {
  const auto bytes = static_cast<uintptr_t>(kernels::kEmbeddingChannels * dy.element_size());
  const bool readable = dy.stride(1) == 1 && dy.stride(0) % kernels::kEmbeddingChannels == 0 &&
                        reinterpret_cast<uintptr_t>(dy.data_ptr()) % bytes == 0;
  const at::Tensor rows = readable ? dy : dy.contiguous();
  const auto [sorted, tokens] = at::sort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor edges =
      at::empty({kernels::embedding_num_tiles(ids.size(0)), 2, table.size(1)}, table.options());
  launch(kernels::EmbeddingBackwardArgs{.ids = sorted.const_data_ptr<int64_t>(),
                                        .tokens = tokens.const_data_ptr<int64_t>(),
                                        .d_y = rows.data_ptr(),
                                        .d_y_stride = rows.stride(0),
                                        .bf16 = rows.scalar_type() == at::kBFloat16,
                                        .num_tokens = ids.size(0),
                                        .width = table.size(1),
                                        .edges = edges.mutable_data_ptr<float>(),
                                        .d_table = table.mutable_data_ptr<float>()},
         current_stream());
}

}  // namespace osdn::ops::embedding_detail
