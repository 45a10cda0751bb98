// Catch2, version 2 or 3, for tests that do not touch LibTorch. Tests with LibTorch include
// tests/support/test.h.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
