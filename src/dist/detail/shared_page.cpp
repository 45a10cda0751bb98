#include "dist/detail/shared_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "base/error.h"

namespace osdn::dist::detail {

std::string SharedPage::new_name() {
  std::random_device random;
  return fmt::format("/osdn-{}-{:08x}{:08x}", ::getpid(), random(), random());
}

SharedPage::SharedPage(std::string name, size_t bytes, Role role) : name_(std::move(name)) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  bytes_ = (bytes + page - 1) / page * page;
  const bool makes = role == Role::kMaker;
  const int file = ::shm_open(name_.c_str(), makes ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (file < 0)
    throw EnvironmentError("/dev/shm{}: cannot be {}: {}", name_, makes ? "made" : "opened",
                           std::strerror(errno));
  named_ = makes;
  // Takes the memory now: a full /dev/shm would otherwise end the process at its first use.
  const int full = makes ? ::posix_fallocate(file, 0, static_cast<off_t>(bytes_)) : 0;
  void* memory =
      full == 0 ? ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int error = full == 0 ? errno : full;
  ::close(file);
  if (memory == MAP_FAILED) {
    remove_name();
    throw EnvironmentError("/dev/shm{}: no {} bytes of it: {}", name_, bytes_, std::strerror(error));
  }
  data_ = memory;
}

SharedPage::~SharedPage() {
  remove_name();
  ::munmap(data_, bytes_);
}

void SharedPage::remove_name() {
  if (named_) ::shm_unlink(name_.c_str());
  named_ = false;
}

}  // namespace osdn::dist::detail
