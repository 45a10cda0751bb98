#include "base/error.h"
#include "tensor/peers.h"
#include "tensor/torch.h"

namespace osdn {
namespace peers_nocuda_detail {

[[noreturn]] void refuse() { throw InternalError("GPUs of one host: this program was built without CUDA"); }

}  // namespace peers_nocuda_detail

struct SideStream::Stream {};

std::string no_peers_reason() { return "built without CUDA"; }
std::string gpu_address() { peers_nocuda_detail::refuse(); }
bool can_reach_gpu(const std::string&) { return false; }
std::string export_memory(const at::Tensor&) { peers_nocuda_detail::refuse(); }
PeerMemory::PeerMemory(const std::string&) : allocation_(nullptr, [](void*) {}) {
  peers_nocuda_detail::refuse();
}
DeviceFlags::DeviceFlags(uint32_t* flags, size_t) : flags_(flags, [](uint32_t*) {}) {
  peers_nocuda_detail::refuse();
}
void DeviceFlags::raise(const std::vector<size_t>&) { peers_nocuda_detail::refuse(); }
void DeviceFlags::await(size_t) { peers_nocuda_detail::refuse(); }
void copy_memory(void*, const void*, size_t) { peers_nocuda_detail::refuse(); }
SideStream::SideStream() { peers_nocuda_detail::refuse(); }
SideStream::~SideStream() = default;
void SideStream::run(const std::function<void()>&) { peers_nocuda_detail::refuse(); }

}  // namespace osdn
