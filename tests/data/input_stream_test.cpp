#include "data/detail/input_stream.h"

#include "base/error.h"
#include "base/fs.h"
#include "tests/data/packed.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace input_stream_test {

using detail::Compression;

class Fixture {
 public:
  std::string write(const std::string& name, const std::string& content) const {
    atomic_write(folder_.path() + "/" + name, content);
    return folder_.path() + "/" + name;
  }

 private:
  TemporaryDirectory folder_;
};

/// Read in pieces of `piece` bytes; each must be full but the last.
std::string unpacked(const std::string& path, size_t piece = 1000) {
  const auto stream = detail::open_input(path, detail::compression_of(path));
  std::string content;
  std::string buffer(piece, '\0');
  while (const size_t got = stream->read(buffer.data(), piece)) {
    content.append(buffer, 0, got);
    if (got < piece) CHECK(stream->read(buffer.data(), piece) == 0);
  }
  return content;
}

/// Lines that a packer can neither ignore nor reduce to nothing.
std::string sample_text(size_t size_bytes) {
  std::string text;
  uint32_t state = 12345;
  while (text.size() < size_bytes) {
    state = state * 1664525 + 1013904223;
    text += "word" + std::to_string(state >> 20) + (state % 7 == 0 ? "\n" : " ");
  }
  text.resize(size_bytes);
  return text;
}

std::string pack(const std::string& ending, const std::string& text) {
  return ending == ".gz" ? test::gzip(text) : test::zstd(text);
}

std::string damage(const std::string& path) {
  return test::message_of<DataError>([&] { unpacked(path); });
}

}  // namespace input_stream_test

TEST_CASE("Packed files give the bytes that were packed, in pieces of any size", "[input_stream]") {
  const input_stream_test::Fixture files;
  const std::string ending = GENERATE(".gz", ".zst");
  CAPTURE(ending);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{262144}, size_t{700001}}) {
    const std::string text = input_stream_test::sample_text(size);
    const std::string path = files.write("a.txt" + ending, input_stream_test::pack(ending, text));
    for (const size_t piece : {size_t{1000}, size_t{65536}, size_t{700001}, size_t{1} << 20}) {
      CAPTURE(size, piece);
      CHECK(input_stream_test::unpacked(path, piece) == text);
    }
    CHECK(input_stream_test::unpacked(files.write("a.txt", text)) == text);
  }
}

TEST_CASE("Members and frames follow each other without a gap in the text", "[input_stream]") {
  const input_stream_test::Fixture files;
  const std::string ending = GENERATE(".gz", ".zst");
  std::string packed;
  std::string wanted;
  for (const size_t size : {size_t{5}, size_t{0}, size_t{300000}, size_t{1}}) {
    packed += input_stream_test::pack(ending, input_stream_test::sample_text(size));
    wanted += input_stream_test::sample_text(size);
  }
  CHECK(input_stream_test::unpacked(files.write("a" + ending, packed)) == wanted);
  // What fills a tape or a block device up, and what zstd lets others write between frames.
  if (ending == ".gz")
    CHECK(input_stream_test::unpacked(files.write("b.gz", packed + std::string(5000, '\0'))) == wanted);
  if (ending == ".zst") {
    const std::string note = std::string("\x50\x2A\x4D\x18\x03\x00\x00\x00", 8) + "abc";
    CHECK(input_stream_test::unpacked(files.write("b.zst", note + packed + note)) == wanted);
  }
}

TEST_CASE("A packed file that is cut off anywhere is refused by name and position", "[input_stream]") {
  const input_stream_test::Fixture files;
  const std::string ending = GENERATE(".gz", ".zst");
  const std::string whole = input_stream_test::pack(ending, input_stream_test::sample_text(40000));
  for (size_t size = 0; size < whole.size();
       size = size < 40 || size > whole.size() - 40 ? size + 1 : size + 997) {
    const std::string message = input_stream_test::damage(files.write("cut" + ending, whole.substr(0, size)));
    CAPTURE(size, message);
    CHECK(test::contains(
        message, "cut" + ending + ": damaged " + (ending == ".gz" ? "gzip" : "zstd") + " stream at byte "));
    CHECK(test::contains(message, size == 0 ? "it is empty" : "it is cut off"));
  }
}

TEST_CASE("A byte that was changed in a packed file never passes", "[input_stream]") {
  const input_stream_test::Fixture files;
  const std::string ending = GENERATE(".gz", ".zst");
  const std::string text = input_stream_test::sample_text(3000);
  const std::string whole = input_stream_test::pack(ending, text);
  int64_t tried = 0;
  int64_t refused = 0;
  // Every byte of the headers and checksums, some between.
  for (size_t i = 0; i < whole.size(); i += i < 24 || i + 25 > whole.size() ? 1 : 17) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    const std::string path = files.write("bad" + ending, changed);
    ++tried;
    // gzip's header has a time and the name of a system that decide nothing: there the text must be whole.
    if (input_stream_test::damage(path).empty()) {
      CAPTURE(i);
      CHECK(input_stream_test::unpacked(path) == text);
    } else {
      ++refused;
    }
  }
  CHECK(refused > tried - 12);
}

TEST_CASE("A name that does not fit the content is named", "[input_stream]") {
  const input_stream_test::Fixture files;
  using input_stream_test::damage;
  CHECK(test::contains(damage(files.write("page.gz", "<html>not found</html>")), "expected a gzip header"));
  CHECK(test::contains(damage(files.write("page.zst", "<html>not found</html>")),
                       "damaged zstd stream at byte "));
  CHECK(test::contains(damage(files.write("a.txt", test::gzip("x"))),
                       "found a gzip stream (let the file's name end in .gz)"));
  CHECK(test::contains(damage(files.write("a.jsonl", test::zstd("x"))), "found a zstd stream"));
  CHECK(test::contains(damage(files.write("b.gz", test::gzip("x") + "rest")),
                       "a further gzip member or the end"));
  CHECK(test::contains(damage(files.write("b.zst", test::zstd("x") + "rest")), "b.zst: damaged zstd stream"));
  CHECK(
      test::contains(test::message_of<EnvironmentError>([] { input_stream_test::unpacked("/nowhere/a.gz"); }),
                     "/nowhere/a.gz: cannot open"));
}

TEST_CASE("The position counts the bytes of the file", "[input_stream]") {
  const input_stream_test::Fixture files;
  const std::string ending = GENERATE("", ".gz", ".zst");
  const std::string text = input_stream_test::sample_text(900000);
  const std::string content = ending.empty() ? text : input_stream_test::pack(ending, text);
  const auto stream =
      detail::open_input(files.write("a" + ending, content), detail::compression_of("a" + ending));
  std::string buffer(100000, '\0');
  int64_t before = 0;
  while (stream->read(buffer.data(), buffer.size()) > 0) {
    CHECK(stream->consumed_bytes() >= before);
    CHECK(stream->consumed_bytes() <= static_cast<int64_t>(content.size()));
    before = stream->consumed_bytes();
  }
  CHECK(stream->consumed_bytes() == static_cast<int64_t>(content.size()));
}

}  // namespace osdn::data
