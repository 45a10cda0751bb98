#include "data/detail/hdf5.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <type_traits>

namespace osdn::data::detail {
namespace {

static_assert(std::is_same_v<hid_t, int64_t>);

std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

herr_t append_failure(unsigned /*depth*/, const H5E_error2_t* error, void* text) {
  auto& line = *static_cast<std::string*>(text);
  if (error->desc && line.find(error->desc) == std::string::npos)
    line += fmt::format("{}{}", line.empty() ? "" : ": ", error->desc);
  return 0;
}

}  // namespace

Hdf5Guard::Hdf5Guard() : lock_(hdf5_mutex()) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

std::string hdf5_failure() {
  const Hdf5Guard guard;
  std::string line;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, append_failure, &line);
  H5Eclear2(H5E_DEFAULT);
  return line.empty() ? "no reason given" : line;
}

}  // namespace osdn::data::detail
