#include "data/detail/jsonl.h"

#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace jsonl_test {

std::string text(const std::string& line, const std::string& key = "text", bool open_ended = false) {
  return detail::text_of_json_line(line, key, "f:1", open_ended);
}

/// The kind of fault and its message.
std::pair<RecordFault, std::string> fault(const std::string& line, const std::string& key = "text",
                                          bool open_ended = false) {
  try {
    text(line, key, open_ended);
  } catch (const detail::RecordError& failure) {
    return {failure.fault(), failure.what()};
  }
  return {RecordFault::kTooLong, "no fault"};
}

}  // namespace jsonl_test

TEST_CASE("A text is found by its key, whatever lies around it", "[jsonl]") {
  using jsonl_test::text;
  CHECK(text(R"({"text": "a"})") == "a");
  CHECK(
      text(
          R"({"id": [1, {"text": "no"}], "meta": {"text": "no"}, "text": "yes", "after": {"text": "no"}})") ==
      "yes");
  CHECK(text(R"({"":"empty key"})", "") == "empty key");
  // Of equal keys the last counts, as JSON readers commonly have it.
  CHECK(text(R"({"text": "first", "text": "last"})") == "last");
  CHECK(text(R"({"text": "escapes \" \\ \u0000 \ud83d\ude00"})") ==
        std::string("escapes \" \\ \0 \xF0\x9F\x98\x80", 18));
}

TEST_CASE("A dotted key goes into objects, and a key with a dot in its name comes first", "[jsonl]") {
  using jsonl_test::text;
  CHECK(text(R"({"data": {"text": "in"}})", "data.text") == "in");
  CHECK(text(R"({"data": {"text": "in"}, "data.text": "out"})", "data.text") == "out");
  CHECK(text(R"({"data.text": "out", "data": {"text": "in"}})", "data.text") == "out");
  CHECK(text(R"({"a": {"b": {"c": "abc"}}})", "a.b.c") == "abc");
  CHECK(text(R"({"a": {"b": {"c": "abc"}, "b.c": "a:bc"
}
})",
             "a.b.c") == "a:bc");
  CHECK(text(R"({"a.b": {"c": "ab:c"}, "a": {"b.c": "a:bc"
}
})",
             "a.b.c") == "a:bc");
  CHECK(text(R"({"a": {"x": 1}, "a.b": {"c": "ab:c"}})", "a.b.c") == "ab:c");
  CHECK(text(R"({"a": {"b": "first"}, "a": {"b": "last"}})", "a.b") == "last");
  // An array is no way to a key.
  CHECK(jsonl_test::fault(R"({"data": [{"text": "in"}]})", "data.text").first == RecordFault::kKeyMissing);
}

TEST_CASE("A record without text says what it has instead", "[jsonl]") {
  using jsonl_test::fault;
  const auto check = [](const std::pair<RecordFault, std::string>& got, RecordFault kind,
                        const std::string& part) {
    CAPTURE(got.second);
    CHECK(got.first == kind);
    CHECK(test::contains(got.second, "f:1: expected text under "));
    CHECK(test::contains(got.second, part));
  };
  check(fault(R"({"body": 1, "id": {"x": 2}})"), RecordFault::kKeyMissing,
        "found only the keys: body, id (set prepare.text_key)");
  check(fault(R"({"data": {"url": 1, "raw": 2}, "id": 3})", "data.text"), RecordFault::kKeyMissing,
        "only the keys: data, data.url, data.raw, id (");
  check(fault("{}"), RecordFault::kKeyMissing, "an object without keys");
  check(fault(R"({"text": null})"), RecordFault::kNull, "found null");
  check(fault(R"({"text": 5})"), RecordFault::kNotText, "found a number");
  check(fault(R"({"text": -5.5})"), RecordFault::kNotText, "found a number");
  check(fault(R"({"text": true})"), RecordFault::kNotText, "found a boolean");
  check(fault(R"({"text": ["a"]})"), RecordFault::kNotText, "found an array");
  check(fault(R"({"text": {"en": "a"}})"), RecordFault::kNotText, "found an object");
  check(fault(R"(["text"])"), RecordFault::kNotText, "found an array instead of an object");
  check(fault(R"("text")"), RecordFault::kNotText, "found text instead of an object");
  check(fault("null"), RecordFault::kNotText, "found null instead of an object");
  std::string wide = "{";
  for (int i = 0; i < 1000; ++i) wide += "\"key" + std::to_string(i) + std::string(1000, 'x') + "\": 1,";
  CHECK(fault(wide + "\"end\": 1}").second.size() < 6000);
}

TEST_CASE("A broken line is told from one that was cut off", "[jsonl]") {
  using jsonl_test::fault;
  for (const bool open_ended : {false, true}) {
    const RecordFault expected = open_ended ? RecordFault::kCutOffLine : RecordFault::kBrokenJson;
    for (const std::string line : {R"({"text": "x")", R"({"text": "x)", R"({"text": )", R"({"text")", "{"}) {
      CAPTURE(line, open_ended);
      CHECK(fault(line, "text", open_ended).first == expected);
    }
    for (const std::string line :
         {R"({"text": })", "oops", R"({"text": "x"} {"text": "y"})", R"({'text': "x"})",
          "{\"text\": \"a\tb\"}", R"({"text": "\ud800"})", R"({"text": "\x"})", "{\"text\": 01}"}) {
      CAPTURE(line, open_ended);
      CHECK(fault(line, "text", open_ended).first == RecordFault::kBrokenJson);
    }
  }
  CHECK(test::contains(fault(R"({"text": "x)", "text", true).second, "breaks off at the end of the file"));
  CHECK(fault("{\"text\": \"\xE9\"}").first == RecordFault::kInvalidUtf8);
  CHECK(test::contains(fault("{\"text\": \"\xE9\"}").second, "found byte 0xE9 at byte 11 of the line"));
  CHECK(test::contains(fault("\xFF\xFE{").second, "this is UTF-16"));
  // However long the broken part is, the message is not.
  CHECK(fault("{\"text\": \"" + std::string(1 << 20, 'x')).second.size() < 500);
}

TEST_CASE("Depth and width of a record cost nothing", "[jsonl]") {
  // As values in memory these would take gigabytes, and a recursive reader would end.
  const std::string deep =
      "{\"a\": " + std::string(3'000'000, '[') + std::string(3'000'000, ']') + ", \"text\": \"x\"}";
  CHECK(jsonl_test::text(deep) == "x");
  std::string objects;
  for (int i = 0; i < 300'000; ++i) objects += "{\"a\":";
  CHECK(jsonl_test::text("{\"a\": " + objects + "1" + std::string(300'000, '}') + ", \"text\": \"x\"}",
                         "text") == "x");
  CHECK(jsonl_test::fault(std::string(3'000'000, '[')).first == RecordFault::kBrokenJson);
}

}  // namespace osdn::data
