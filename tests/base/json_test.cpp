#include "base/json.h"

#include <cmath>
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
