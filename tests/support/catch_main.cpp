// Catch2 2 brings no main library of its own.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
