// The light include for headers that name at::Tensor (members of argument structs need the complete type).
#pragma once

#include <ATen/core/Tensor.h>
