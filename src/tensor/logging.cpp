#include "tensor/logging.h"

#include <cstdlib>

#include "tensor/torch.h"

C10_DECLARE_int(caffe2_log_level);

namespace osdn {

void choose_libtorch_logging() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL"))
    c10::initLogging();
  else
    FLAGS_caffe2_log_level = 3;  // as numbered by glog: fatal errors only
}

}  // namespace osdn
