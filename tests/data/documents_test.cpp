#include "data/documents.h"

#include "base/fs.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace documents_test {

class Fixture {
 public:
  std::string write(const std::string& name, const std::string& content) const {
    atomic_write(folder_.path() + "/" + name, content);
    return folder_.path() + "/" + name;
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryDirectory folder_;
};

std::vector<std::string> read_all(const config::Prepare& settings) {
  InputReader reader(settings, find_inputs(settings), 1);
  std::vector<std::string> documents;
  for (RawDocuments raw; reader.next(&raw);)
    for (std::string& text : split_documents(raw, settings.text_key)) documents.push_back(std::move(text));
  return documents;
}

std::vector<std::string> read_file_as(const std::string& path, const std::string& key = "text") {
  config::Prepare settings;
  settings.input = {path};
  settings.text_key = key;
  return read_all(settings);
}

}  // namespace documents_test

TEST_CASE("Line ends and a byte order mark do not change a text document", "[documents]") {
  const documents_test::Fixture files;
  const std::string plain = "one\n\ntwo\nthree";
  for (const bool mark : {false, true})
    for (const std::string end : {"\n", "\r\n", "\r"})
      for (const bool last : {false, true}) {
        std::string text = mark ? "\xEF\xBB\xBF" : "";
        for (const char character : plain + (last ? "\n" : ""))
          text += character == '\n' ? end : std::string(1, character);
        CAPTURE(text);
        CHECK(documents_test::read_file_as(files.write("a.txt", text)) ==
              std::vector<std::string>{plain + (last ? "\n" : "")});
      }
  // Only at the start of the file: elsewhere U+FEFF is a character like any other.
  CHECK(documents_test::read_file_as(files.write("b.txt", "x\xEF\xBB\xBFy")) ==
        std::vector<std::string>{"x\xEF\xBB\xBFy"});
}

TEST_CASE("JSON lines give their strings exactly", "[documents]") {
  const documents_test::Fixture files;
  const std::string lines =
      "\xEF\xBB\xBF{\"text\": \"a\\r\\nb\\u0000c\\u2581\"}\r\n\n  \n{\"id\": 1, \"text\": "
      "\"\"}\n{\"text\":\"caf\\u00e9 \\ud83d\\ude00\"}";
  CHECK(
      documents_test::read_file_as(files.write("a.jsonl", lines)) ==
      std::vector<std::string>{std::string("a\r\nb\0c\xE2\x96\x81", 9), "", "caf\xC3\xA9 \xF0\x9F\x98\x80"});
  const std::string nested =
      "{\"doc\": {\"body\": \"deep\"}, \"doc.title\": \"flat\", \"text\": \"other\"}\n";
  files.write("n.jsonl", nested);
  CHECK(documents_test::read_file_as(files.path() + "/n.jsonl", "doc.body") ==
        std::vector<std::string>{"deep"});
  CHECK(documents_test::read_file_as(files.path() + "/n.jsonl", "doc.title") ==
        std::vector<std::string>{"flat"});
}

TEST_CASE("Long JSON lines and many blocks keep every document in order", "[documents]") {
  const documents_test::Fixture files;
  std::string content;
  std::vector<std::string> wanted;
  for (int i = 0; i < 300; ++i) {
    wanted.push_back(std::to_string(i) + std::string(i == 7 ? 5'000'000 : 20'000, 'x'));
    content += "{\"text\": \"" + wanted.back() + "\"}\n";
  }
  const bool final_newline = GENERATE(true, false);
  if (!final_newline) content.pop_back();
  CHECK(documents_test::read_file_as(files.write("long.jsonl", content)) == wanted);
}

TEST_CASE("Bad input is named by file and line", "[documents]") {
  const documents_test::Fixture files;
  const auto refusal = [&](const std::string& name, const std::string& content) {
    const std::string path = files.write(name, content);
    const std::string message = test::message_of<UserError>([&] { documents_test::read_file_as(path); });
    CAPTURE(message);
    return message;
  };
  CHECK(test::contains(refusal("a.txt", "fine\ncaf\xE9\n"),
                       "a.txt:2: expected UTF-8, found byte 0xE9 at byte 4 of the line"));
  CHECK(test::contains(refusal("b.txt", "\xED\xA0\x80"),
                       "b.txt:1: expected UTF-8, found byte 0xED"));               // a surrogate
  CHECK(test::contains(refusal("c.txt", "\xC0\xAF"), "c.txt:1: expected UTF-8"));  // overlong
  CHECK(
      test::contains(refusal("d.txt", "ok \xF4\x90\x80\x80"), "d.txt:1: expected UTF-8"));  // above U+10FFFF
  CHECK(test::contains(refusal("e.txt", "cut \xE2\x82"), "e.txt:1: expected UTF-8"));
  const std::string good = "{\"text\": \"x\"}\n";
  CHECK(test::contains(refusal("a.jsonl", good + good + "{\"text\": \"x\"\n"),
                       "a.jsonl:3: expected one JSON object a line"));
  CHECK(test::contains(refusal("b.jsonl", good + "{\"text\": \"\xE9\"}\n"), "b.jsonl:2: expected UTF-8"));
  CHECK(test::contains(refusal("c.jsonl", good + "{\"body\": 1, \"id\": 2}\n"),
                       "c.jsonl:2: expected text under \"text\", found only the keys: body, id"));
  CHECK(test::contains(refusal("d.jsonl", "{\"text\": 5}\n"),
                       "d.jsonl:1: expected text under \"text\", found number"));
  CHECK(test::contains(refusal("e.jsonl", "\n[1]\n"),
                       "e.jsonl:2: expected text under \"text\", found no object but array"));
  CHECK(test::contains(refusal("f.jsonl", "{\"text\": \"\\ud800\"}\n"),
                       "f.jsonl:1: expected one JSON object a line"));
  CHECK(test::contains(refusal("g.csv", "x"), "g.csv: expected a name ending in .txt or .jsonl"));
  CHECK(test::contains(refusal("h.jsonl.gz", "x"), "unpack .gz and .zst files first"));
  // A later block counts its lines from the start of the file.
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "{\"text\": \"some words\"}\n";
  CHECK(test::contains(refusal("i.jsonl", many + "oops\n"), "i.jsonl:100001: "));
}

TEST_CASE("A glob without matches is refused with the place that was searched", "[documents]") {
  config::Prepare settings;
  settings.input = {"nowhere/*.txt"};
  const std::string message = test::message_of<UserError>([&] { find_inputs(settings); });
  CHECK(test::contains(message, "prepare.input: nothing matches nowhere/*.txt (that is /"));
}

TEST_CASE("Documents without visible text are empty", "[documents]") {
  for (const std::string text : {"", " ", "\n", "\t", "\xEF\xBB\xBF", " \r\n\xEF\xBB\xBF \v\f"})
    CHECK(is_empty_document(text));
  for (const std::string& text :
       {std::string("</s>"), std::string("a"), std::string(1, '\0'), std::string("\xE2\x96\x81")})
    CHECK_FALSE(is_empty_document(text));
}

}  // namespace osdn::data
