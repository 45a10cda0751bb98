#include "checkpoint/safetensors.h"

#include <cstdint>
#include <string>

#include "tests/checkpoint/support.h"

namespace safetensors_test {

using checkpoint_test::contains;
using checkpoint_test::message_of;

std::string with_header(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

/// The message of reading a file with this header and so many bytes of data.
std::string refusal(const std::string& header, size_t data_bytes) {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.safetensors";
  checkpoint_test::write_bytes(path, with_header(header, std::string(data_bytes, '\0')));
  return message_of<osdn::DataError>([&] { osdn::checkpoint::read_safetensors(path); });
}

}  // namespace safetensors_test

TEST_CASE("every dtype and shape reads back bit for bit, and the digest is the file's", "[safetensors]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.safetensors";
  osdn::checkpoint::TensorList tensors;
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kBFloat16, at::kHalf,
                                    at::kInt, at::kFloat, at::kLong, at::kDouble})
    tensors.emplace_back(std::string("a.") + c10::toString(type),
                         at::arange(15).remainder(2).reshape({3, 5}).to(type));
  tensors.emplace_back("empty", at::zeros({0, 4}));
  tensors.emplace_back("scalar \"quoted\" \xC3\xA9", at::scalar_tensor(2.5));
  const osdn::Digest128 digest =
      osdn::checkpoint::write_safetensors(path, tensors, {{"format", "pt"}, {"a\n", "\"b\""}});
  CHECK(digest == osdn::digest_file(path));
  osdn::Digest128 read_digest;
  const auto content = osdn::checkpoint::read_safetensors(path, &read_digest);
  CHECK(read_digest == digest);
  CHECK(content.metadata == std::map<std::string, std::string>{{"format", "pt"}, {"a\n", "\"b\""}});
  REQUIRE(content.tensors.size() == tensors.size());
  const std::map<std::string, at::Tensor> by_name(content.tensors.begin(), content.tensors.end());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    REQUIRE(by_name.count(name) == 1);
    CHECK(by_name.at(name).scalar_type() == tensor.scalar_type());
    CHECK(at::equal(by_name.at(name), tensor));
  }
}

TEST_CASE("the file has the layout of the format", "[safetensors]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.safetensors";
  const osdn::checkpoint::TensorList tensors = {{"half", at::ones({1}, at::kHalf)}, {"b", at::ones({2})}};
  osdn::checkpoint::write_safetensors(path, tensors, {});
  const std::string bytes = osdn::read_file(path);
  CHECK(bytes.size() == osdn::checkpoint::safetensors_bytes(tensors, {}));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK((8 + length) % 8 == 0);
  const std::string expected =
      R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"half":{"dtype":"F16","shape":[1],"data_offsets":[8,10]}})";
  CHECK(bytes.substr(8, expected.size()) == expected);
  CHECK(bytes.substr(8 + expected.size(), length - expected.size()).find_first_not_of(' ') ==
        std::string::npos);
  const std::string ones = std::string("\0\0\x80\x3f", 4);
  CHECK(bytes.substr(8 + length) == ones + ones + std::string("\0\x3c", 2));
}

TEST_CASE("a truncated file is refused at every length", "[safetensors]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.safetensors";
  osdn::checkpoint::write_safetensors(path, {{"a", at::ones({3})}, {"b", at::ones({2}, at::kLong)}},
                                      {{"k", "v"}});
  const std::string whole = osdn::read_file(path);
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    checkpoint_test::write_bytes(path, whole.substr(0, length));
    const std::string message =
        safetensors_test::message_of<osdn::DataError>([&] { osdn::checkpoint::read_safetensors(path); });
    CHECK(safetensors_test::contains(message, path));
  }
  checkpoint_test::write_bytes(path, whole + "x");
  const std::string longer =
      safetensors_test::message_of<osdn::DataError>([&] { osdn::checkpoint::read_safetensors(path); });
  CHECK(safetensors_test::contains(longer, "appended"));
}

TEST_CASE("a header that lies is refused with the tensor's name", "[safetensors]") {
  using safetensors_test::contains;
  using safetensors_test::refusal;
  CHECK(contains(
      refusal(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
          12),
      "tensor b: data begins at byte 4, expected 8: the data overlap"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), "has a gap"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8), "appended"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", 1), "F8_E4M3"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
                 "shape needs 12 bytes"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8),
                 "2^63"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", 8), "whole numbers"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}})", 4), "whole numbers"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4),
                 "whole"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4), "begin <= end"));
  CHECK(contains(
      refusal(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
          8),
      "names \"a\" twice"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4),
                 "twice"));
  CHECK(contains(refusal(R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},"b":7})", 1), "tensor b"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "data_offsets"));
  CHECK(contains(refusal(R"({"__metadata__":{"k":1}})", 0), "expected a string"));
  CHECK(contains(refusal("[1,2]", 0), "no JSON object"));
  CHECK(contains(refusal("{\"a\":", 0), "not valid JSON"));
  CHECK(contains(refusal(std::string(100000, '['), 0), "deeper"));
  CHECK(contains(refusal("{}", 3), "describes 0 bytes"));
}

TEST_CASE("an absurd header length is refused before memory is taken", "[safetensors]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.safetensors";
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 40, ~uint64_t{0}}) {
    checkpoint_test::write_bytes(path, std::string(reinterpret_cast<const char*>(&length), 8) + "{}");
    CHECK_THROWS_AS(osdn::checkpoint::read_safetensors(path), osdn::DataError);
  }
  const uint64_t beyond = 90'000'000;
  checkpoint_test::write_bytes(path, std::string(reinterpret_cast<const char*>(&beyond), 8) + "{}");
  const std::string message =
      safetensors_test::message_of<osdn::DataError>([&] { osdn::checkpoint::read_safetensors(path); });
  CHECK(safetensors_test::contains(message, "truncated"));
}

TEST_CASE("a BOOL byte that is neither 0 nor 1 is refused", "[safetensors]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.safetensors";
  checkpoint_test::write_bytes(
      path, safetensors_test::with_header(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})",
                                          "\x01\x02"));
  CHECK_THROWS_AS(osdn::checkpoint::read_safetensors(path), osdn::DataError);
}

TEST_CASE("a missing file is the machine's error, not a damaged one", "[safetensors]") {
  CHECK_THROWS_AS(osdn::checkpoint::read_safetensors("/nonexistent/x.safetensors"), osdn::EnvironmentError);
}

TEST_CASE("shapes that only their strides betray are refused", "[safetensors]") {
  using safetensors_test::contains;
  using safetensors_test::refusal;
  // An empty tensor has no bytes, but 2^62 x 2^62 elements apart is no address.
  CHECK(contains(
      refusal(
          R"({"a":{"dtype":"U8","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})",
          0),
      "2^63"));
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  CHECK(contains(refusal(R"({"a":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})", 1),
                 "65 dimensions"));
}

TEST_CASE("a header that is not UTF-8 is refused", "[safetensors]") {
  CHECK(safetensors_test::contains(
      safetensors_test::refusal("{\"\xFF\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1),
      "not valid JSON"));
}

TEST_CASE("messages about a long header stay short", "[safetensors]") {
  CHECK(safetensors_test::refusal("{\"" + std::string(1 << 20, 'x'), 0).size() < 1000);
  CHECK(safetensors_test::refusal("{\"a\": " + std::string(1 << 20, '9') + "}", 0).size() < 1000);
}

TEST_CASE("every truncation is refused, and no altered bit of a header makes a read leave the data",
          "[safetensors]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/x.safetensors";
  osdn::checkpoint::write_safetensors(path, {{"a", at::ones({2, 2})}, {"b", at::ones({3}, at::kHalf)}}, {});
  const std::string whole = osdn::read_file(path);
  for (size_t size = 0; size < whole.size(); ++size) {
    checkpoint_test::write_bytes(path, whole.substr(0, size));
    CHECK_THROWS_AS(osdn::checkpoint::read_safetensors(path), osdn::DataError);
  }
  const size_t data_begin = whole.size() - 22;  // 16 bytes of a, 6 of b
  for (size_t at = 0; at < data_begin; ++at)
    for (const int bit : {0, 3, 5, 7}) {
      std::string altered = whole;
      altered[at] = static_cast<char>(altered[at] ^ (1 << bit));
      checkpoint_test::write_bytes(path, altered);
      try {
        // Names and padding may change unnoticed here (a checkpoint's digest notices); sizes may not.
        uint64_t bytes = 0;
        for (const auto& [name, tensor] : osdn::checkpoint::read_safetensors(path).tensors)
          bytes += tensor.nbytes();
        CHECK(bytes == 22);
      } catch (const osdn::DataError&) {
      }
    }
}
