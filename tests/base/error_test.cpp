#include "base/error.h"

#include <string>

#include "tests/support/catch.h"

TEST_CASE("each kind of error carries its exit code and its text", "[error]") {
  CHECK(osdn::UserError("a {}", 1).code() == osdn::ExitCode::kUserError);
  CHECK(osdn::EnvironmentError("a").code() == osdn::ExitCode::kEnvironmentError);
  CHECK(osdn::DataError("a").code() == osdn::ExitCode::kDataError);
  CHECK(osdn::InternalError("a").code() == osdn::ExitCode::kInternalError);
  CHECK(std::string(osdn::UserError("{}: expected {}, got {}", "key", 2, "x").what()) ==
        "key: expected 2, got x");
  CHECK(static_cast<int>(osdn::ExitCode::kUserError) == 2);
  CHECK(static_cast<int>(osdn::ExitCode::kInternalError) == 5);
}

TEST_CASE("a broken invariant says where, which condition, and the values", "[error]") {
  const int rows = 3;
  std::string message;
  try {
    OSDN_ASSERT(rows == 4, "rows is {}", rows);
  } catch (const osdn::InternalError& failure) {
    message = failure.what();
  }
  CHECK(message.find("error_test.cpp:") != std::string::npos);
  CHECK(message.find("rows == 4") != std::string::npos);
  CHECK(message.find("rows is 3") != std::string::npos);
}
