// Event files are read back by a parser that shares nothing with the writer but the CRC, which has its own
// vectors.
#include "metrics/tensorboard_writer.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "metrics/detail/crc32c.h"
#include "tests/support/catch.h"

namespace osdn::metrics::test {

namespace tensorboard_writer_test_detail {

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::string session_log;
  std::map<std::string, float> scalars;
};

uint64_t take_little_endian(std::string_view& bytes, size_t size) {
  REQUIRE(bytes.size() >= size);
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  bytes.remove_prefix(size);
  return value;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    REQUIRE(!bytes.empty());
    REQUIRE(shift < 64);
    const auto byte = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if ((byte & 0x80) == 0) return value;
  }
}

std::string_view take_bytes(std::string_view& bytes) {
  const uint64_t size = take_varint(bytes);
  REQUIRE(bytes.size() >= size);
  const std::string_view value = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return value;
}

template <typename T, typename Bits>
T from_bits(Bits bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void parse_summary(std::string_view summary, Event& event) {
  while (!summary.empty()) {
    REQUIRE(take_varint(summary) == (1 << 3 | 2));  // repeated Value
    std::string_view value = take_bytes(summary);
    std::string tag;
    while (!value.empty()) {
      const uint64_t key = take_varint(value);
      if (key == (1 << 3 | 2)) {
        tag = std::string(take_bytes(value));
      } else {
        REQUIRE(key == (2 << 3 | 5));
        REQUIRE(event.scalars.count(tag) == 0);
        event.scalars[tag] = from_bits<float>(static_cast<uint32_t>(take_little_endian(value, 4)));
      }
    }
  }
}

Event parse_event(std::string_view bytes) {
  Event event;
  while (!bytes.empty()) {
    switch (take_varint(bytes)) {
      case 1 << 3 | 1:
        event.wall_time = from_bits<double>(take_little_endian(bytes, 8));
        break;
      case 2 << 3 | 0:
        event.step = static_cast<int64_t>(take_varint(bytes));
        break;
      case 3 << 3 | 2:
        event.file_version = std::string(take_bytes(bytes));
        break;
      case 5 << 3 | 2:
        parse_summary(take_bytes(bytes), event);
        break;
      case 7 << 3 | 2:
        event.session_log = std::string(take_bytes(bytes));
        break;
      default:
        FAIL("unknown field of Event");
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& path) {
  const std::string content = read_file(path);
  std::string_view rest = content;
  std::vector<Event> events;
  while (!rest.empty()) {
    const std::string_view length_bytes = rest.substr(0, 8);
    const uint64_t length = take_little_endian(rest, 8);
    CHECK(take_little_endian(rest, 4) == detail::masked_crc32c(length_bytes));
    REQUIRE(rest.size() >= length + 4);
    const std::string_view data = rest.substr(0, length);
    rest.remove_prefix(length);
    CHECK(take_little_endian(rest, 4) == detail::masked_crc32c(data));
    events.push_back(parse_event(data));
  }
  return events;
}

}  // namespace tensorboard_writer_test_detail

TEST_CASE("CRC-32C agrees with the published vectors", "[tensorboard_writer]") {
  CHECK(detail::crc32c("") == 0);
  CHECK(detail::crc32c("123456789") == 0xE3069283u);
  // RFC 3720, B.4.
  CHECK(detail::crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(detail::crc32c(std::string(32, '\xFF')) == 0x62A8AB43u);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  CHECK(detail::crc32c(rising) == 0x46DD794Eu);
  // The frame that every event file of TensorFlow begins with: length 24.
  CHECK(detail::masked_crc32c(std::string_view("\x18\0\0\0\0\0\0\0", 8)) == 0x224B7FA3u);
}

TEST_CASE("an event file reads back with its version, steps and scalars", "[tensorboard_writer]") {
  const TemporaryDirectory directory;
  const std::string folder = directory.path() + "/made/tensorboard";
  {
    TensorboardWriter writer(folder);
    StepRecord record;
    record.step = 300;
    record.loss = 2.5;
    record.learning_rate = 1e-3;
    record.grad_norm = std::numeric_limits<double>::quiet_NaN();
    writer.append(record);
    record.step = 301;
    record.grad_norm = 0.75;
    ResidualFields residual;
    residual.q_geo = 0.25;
    record.residual = residual;
    residual.q_geo = 0.125;
    record.residual_layers = {residual, residual};
    record.validation = Validation{3.0, 20.0, 1.5};
    writer.append(record);
    writer.sync();
  }
  const std::vector<std::string> files = glob_paths(folder + "/events.out.tfevents.*");
  REQUIRE(files.size() == 1);
  const auto events = tensorboard_writer_test_detail::read_events(files[0]);
  REQUIRE(events.size() == 4);
  CHECK(events[0].file_version == "brain.Event:2");
  CHECK(events[0].wall_time > 1.6e9);
  CHECK(events[1].session_log ==
        "\x08\x01");  // status START: older files' values from this step on are forgotten
  CHECK(events[1].step == 300);
  CHECK(events[2].step == 300);
  CHECK(events[2].scalars.at("train/loss") == 2.5f);
  CHECK(events[2].scalars.at("train/learning_rate") == 1e-3f);
  CHECK(events[2].scalars.count("train/grad_norm") == 0);
  CHECK(events[2].scalars.count("residual/q_geo") == 0);
  CHECK(events[3].step == 301);
  CHECK(events[3].scalars.at("train/grad_norm") == 0.75f);
  CHECK(events[3].scalars.at("residual/q_geo") == 0.25f);
  CHECK(events[3].scalars.at("residual_q_geo/layer_01") == 0.125f);
  CHECK(events[3].scalars.at("validation/bits_per_byte") == 1.5f);
}

TEST_CASE("a second writer leaves the first one's file alone", "[tensorboard_writer]") {
  const TemporaryDirectory directory;
  const TensorboardWriter first(directory.path());
  const std::vector<std::string> before = glob_paths(directory.path() + "/*");
  REQUIRE(before.size() == 1);
  const std::string content = read_file(before[0]);
  const TensorboardWriter second(directory.path());
  CHECK(glob_paths(directory.path() + "/*").size() == 2);
  CHECK(read_file(before[0]) == content);
}

}  // namespace osdn::metrics::test
