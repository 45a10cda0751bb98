// Memory of the host that the processes of one host share under a name, zero at first. Free of LibTorch.
#pragma once

#include <cstddef>
#include <string>

namespace osdn::dist::detail {

class SharedPage {
 public:
  /// Makes it, or opens what another process made. EnvironmentError when that cannot be done, as on another
  /// host.
  enum class Role { kMaker, kGuest };
  SharedPage(std::string name, size_t bytes, Role role);
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// Takes the name away; those who have opened it keep the memory. The maker's end does it too.
  void remove_name();

  /// A name that nobody has.
  static std::string new_name();

 private:
  std::string name_;
  size_t bytes_ = 0;  // whole pages
  bool named_ = false;
  void* data_ = nullptr;
};

}  // namespace osdn::dist::detail
