#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "dist/detail/backend.h"
#include "tensor/torch.h"

// After LibTorch: the header is empty without the definition that CMake gives this file.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace osdn::dist::detail {
namespace backend_gloo_detail {

/// This host's own address on the way to another: what a UDP socket that is connected there has as its name.
/// Nothing is sent. Empty when there is no way.
std::string own_address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  std::string address;
  for (const addrinfo* entry = found; entry && address.empty(); entry = entry->ai_next) {
    const int socket = ::socket(entry->ai_family, entry->ai_socktype, entry->ai_protocol);
    if (socket < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    char text[NI_MAXHOST] = {};
    if (::connect(socket, entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0)
      address = text;
    ::close(socket);
  }
  ::freeaddrinfo(found);
  return address;
}

}  // namespace backend_gloo_detail

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendRequest& request) {
  const auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
  const LaunchEnvironment& launched = request.launched;
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface && *interface) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  } else {
    const std::string address =
        backend_gloo_detail::own_address_towards(launched.master_addr, launched.master_port);
    if (address.empty())
      throw EnvironmentError(
          "rank {} of {}: no network address of this host leads to {}; set GLOO_SOCKET_IFNAME to the "
          "interface that does",
          launched.rank, launched.world_size, launched.master_addr);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, launched.rank, launched.world_size,
                                                     options);
}

}  // namespace osdn::dist::detail
