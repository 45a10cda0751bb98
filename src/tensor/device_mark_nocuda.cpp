#include "base/error.h"
#include "tensor/device_mark.h"

namespace osdn {

struct DeviceMark::Event {};

bool is_capturing() { return false; }

DeviceMark::DeviceMark() { throw InternalError("device mark: this program was built without CUDA"); }
DeviceMark::~DeviceMark() = default;
void DeviceMark::delay_current_stream() const {}
bool DeviceMark::reached() const { return true; }

}  // namespace osdn
