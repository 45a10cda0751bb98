#include "base/json.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/fs.h"
#include "tests/support/catch.h"

TEST_CASE("keys keep the order in which they were written", "[json]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.json";
  osdn::atomic_write(path, R"({"z": 1, "a": {"y": [1, 2.5], "b": null}})");
  CHECK(osdn::read_json(path).dump() == R"({"z":1,"a":{"y":[1,2.5],"b":null}})");
}

TEST_CASE("doubles survive writing and reading bit for bit", "[json]") {
  for (const double value :
       {0.1, 1.0 / 3, 5e-324, std::numeric_limits<double>::max(), -0.0, 123456789.123456789}) {
    const double back = osdn::Json::parse(osdn::Json(value).dump()).get<double>();
    CHECK(back == value);
    CHECK(std::signbit(back) == std::signbit(value));
  }
}

TEST_CASE("what is not JSON is refused with path and position", "[json]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.json";
  for (const char* text : {"", "{", "{} {}", "{\"a\": nan}", "{\"a\": 1,}", "\xFF"}) {
    osdn::atomic_write(path, text);
    std::string message;
    try {
      osdn::read_json(path);
    } catch (const osdn::DataError& failure) {
      message = failure.what();
    }
    INFO(text);
    CHECK(message.find(path + ": not valid JSON") == 0);
    CHECK(message.find("column") != std::string::npos);
  }
  CHECK_THROWS_AS(osdn::read_json(directory.path() + "/absent"), osdn::EnvironmentError);
}

TEST_CASE("whole numbers are taken as they are, everything else is refused", "[json]") {
  CHECK(osdn::json_integer(osdn::Json::parse("7")) == 7);
  CHECK(osdn::json_integer(osdn::Json::parse("-9223372036854775808")) == INT64_MIN);
  CHECK(osdn::json_integer(osdn::Json::parse("9223372036854775807")) == INT64_MAX);
  for (const char* text :
       {"9223372036854775808", "1e99", "1.0", "-1e300", "\"7\"", "null", "true", "[7]", "{}"}) {
    INFO(text);
    CHECK_FALSE(osdn::is_json_integer(osdn::Json::parse(text)));
    CHECK_THROWS_AS(osdn::json_integer(osdn::Json::parse(text)), osdn::Json::exception);
  }
}
