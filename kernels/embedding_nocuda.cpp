#include "base/error.h"
#include "kernels/embedding.h"

namespace osdn::kernels {

void launch(const EmbeddingBackwardArgs&, CUstream_st*) {
  throw EnvironmentError("embedding: this program was built without CUDA");
}

}  // namespace osdn::kernels
