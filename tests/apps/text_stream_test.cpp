#include "apps/text_stream.h"

#include "tests/support/catch.h"

namespace text_stream_test {

using osdn::apps::TextStream;

/// What is printed of `pieces`, call by call, the end last.
std::vector<std::string> stream(const std::vector<std::string>& pieces,
                                const std::vector<std::string>& stops = {}) {
  TextStream text(stops);
  std::vector<std::string> printed;
  for (const std::string& piece : pieces) printed.push_back(text.push(piece));
  printed.push_back(text.finish());
  std::string all;
  for (const std::string& part : printed) all += part;
  CHECK(all == text.text());
  return printed;
}

using Parts = std::vector<std::string>;

}  // namespace text_stream_test

TEST_CASE("text comes as it is decoded, characters only whole", "[text_stream]") {
  using text_stream_test::Parts;
  using text_stream_test::stream;
  CHECK(stream({"The", " mill"}) == Parts{"The", " mill", ""});
  // U+00E9, U+20AC and U+1F600, byte by byte.
  CHECK(stream({"a\xC3",
                "\xA9"
                "b"}) == Parts{"a",
                               "\xC3\xA9"
                               "b",
                               ""});
  CHECK(stream({"\xE2", "\x82", "\xAC"}) == Parts{"", "", "\xE2\x82\xAC", ""});
  CHECK(stream({"\xF0", "\x9F", "\x98", "\x80"}) == Parts{"", "", "", "\xF0\x9F\x98\x80", ""});
  CHECK(stream({std::string("a\0b", 3)}) == Parts{std::string("a\0b", 3), ""});
}

TEST_CASE("bytes that belong to no character become one replacement each", "[text_stream]") {
  using text_stream_test::Parts;
  using text_stream_test::stream;
  const std::string mark = "\xEF\xBF\xBD";
  CHECK(stream({"a\xFF", "b"}) == Parts{"a" + mark, "b", ""});
  CHECK(stream({"\x80"}) == Parts{mark, ""});
  CHECK(stream({"\xC0\xAF"}) == Parts{mark + mark, ""});                        // overlong
  CHECK(stream({"\xED\xA0\x80"}) == Parts{mark + mark + mark, ""});             // a surrogate
  CHECK(stream({"\xF4\x90\x80\x80"}) == Parts{mark + mark + mark + mark, ""});  // above U+10FFFF
  CHECK(stream({"\xE2\x82", "x"}) == Parts{"", mark + "x", ""});
  CHECK(stream({"a\xE2\x82"}) == Parts{"a", mark});  // the end came within a character
}

TEST_CASE("a stop text ends the output and is not printed, wherever tokens cut it", "[text_stream]") {
  using text_stream_test::Parts;
  using text_stream_test::stream;
  CHECK(stream({"one. two"}, {". "}) == Parts{"one", ""});
  CHECK(stream({"one.", " two"}, {". "}) == Parts{"one", "", ""});
  CHECK(stream({"one.", "two"}, {". "}) == Parts{"one", ".two", ""});
  CHECK(stream({"one."}, {". "}) == Parts{"one", "."});
  CHECK(stream({"x\xC3", "\xA9y"}, {"\xC3\xA9"}) == Parts{"x", "", ""});
  CHECK(stream({"a aab"}, {"b", "aab"}) == Parts{"a ", ""});  // the earliest begins first
  CHECK(stream({"aaa", "b"}, {"aab"}) == Parts{"a", "", ""});
  osdn::apps::TextStream text({"!"});
  text.push("a!b");
  CHECK(text.stopped());
  CHECK(text.push("c").empty());
  CHECK(text.finish().empty());
  CHECK(text.text() == "a");
}
