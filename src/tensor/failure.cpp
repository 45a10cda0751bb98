#include "tensor/failure.h"

#include <new>
#include <string_view>

#include "tensor/torch.h"

namespace osdn {

bool is_out_of_memory(const std::exception& failure) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&failure) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr) return true;
  // The allocator of the CPU throws the class of every other error.
  const auto* error = dynamic_cast<const c10::Error*>(&failure);
  return error != nullptr &&
         std::string_view(error->what_without_backtrace()).find("can't allocate memory") !=
             std::string_view::npos;
}

}  // namespace osdn
