// Before everything else in sources that are compiled with the hooks of thread sanitizers
// (instrumentation.cpp): their copies of many bytes, which clang leaves to the library without a word to the
// hooks, go through there.
#pragma once

asm(".set memcpy, osdn_checked_memcpy");
asm(".set memmove, osdn_checked_memmove");
asm(".set memset, osdn_checked_memset");

#include "tests/emulation/cuda_on_cpu.h"
