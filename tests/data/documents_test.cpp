#include "data/documents.h"

#include <fstream>
#include <utility>

#include "base/fs.h"
#include "tests/data/packed.h"
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
    for (std::string& text : split_documents(raw, settings).texts) documents.push_back(std::move(text));
  return documents;
}

/// Largest resident memory since the last restart.
int64_t peak_kb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
  return 0;
}
int64_t restart_peak_kb() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return peak_kb();
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
                       "d.jsonl:1: expected text under \"text\", found a number"));
  CHECK(test::contains(refusal("e.jsonl", "\n[1]\n"),
                       "e.jsonl:2: expected text under \"text\", found an array instead of an object"));
  CHECK(test::contains(refusal("f.jsonl", "{\"text\": \"\\ud800\"}\n"),
                       "f.jsonl:1: expected one JSON object a line"));
  CHECK(test::contains(refusal("g.csv", "x"), "g.csv: expected a name ending in .txt, .jsonl or .parquet"));
  CHECK(test::contains(refusal("h.json", "{}"), "set prepare.format for other names"));
  CHECK(test::contains(refusal("j.txt", std::string("\xFF\xFEh\0i\0", 6)),
                       "j.txt:1: expected UTF-8, found byte 0xFF at byte 1 of the line (this is UTF-16"));
  CHECK(test::contains(
      refusal("k.jsonl", good + "{\"text\": \"x"),
      "k.jsonl:2: expected one JSON object a line, found one that breaks off at the end of the file"));
  CHECK(
      test::contains(refusal("l.jsonl", "{}\n"), "or leave such records out, counted, with --on-error skip"));
  CHECK(test::contains(refusal("m.jsonl", "{\"text\": \"x\"}\r\r\noops\r\n"), "m.jsonl:3: "));
  // A later block counts its lines from the start of the file.
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "{\"text\": \"some words\"}\n";
  CHECK(test::contains(refusal("i.jsonl", many + "oops\n"), "i.jsonl:100001: "));
}

TEST_CASE("The same lines with any line ends, mark and packing are the same documents", "[documents]") {
  const documents_test::Fixture files;
  std::vector<std::string> wanted;
  for (int i = 0; i < 20; ++i) wanted.push_back("document " + std::to_string(i) + "\n\nof lines\r\n");
  for (const bool mark : {false, true})
    for (const std::string end : {"\n", "\r\n", "\r"})
      for (const bool last : {false, true}) {
        std::string content = mark ? "\xEF\xBB\xBF" : "";
        for (size_t i = 0; i < wanted.size(); ++i) {
          content += "{\"text\": \"document " + std::to_string(i) + "\\n\\nof lines\\r\\n\"}";
          if (last || i + 1 < wanted.size()) content += end;
        }
        CAPTURE(mark, end, last);
        CHECK(documents_test::read_file_as(files.write("a.jsonl", content)) == wanted);
        CHECK(documents_test::read_file_as(files.write("a.jsonl.gz", test::gzip(content))) == wanted);
        CHECK(documents_test::read_file_as(files.write("a.ndjson.zst", test::zstd(content))) == wanted);
        const std::string text = "one\n\ntwo" + std::string(last ? "\n" : "");
        std::string with_ends = mark ? "\xEF\xBB\xBF" : "";
        for (const char character : text) with_ends += character == '\n' ? end : std::string(1, character);
        CHECK(documents_test::read_file_as(files.write("a.txt.gz", test::gzip(with_ends))) ==
              std::vector<std::string>{text});
        CHECK(documents_test::read_file_as(files.write("a.txt.zst", test::zstd(with_ends))) ==
              std::vector<std::string>{text});
      }
}

TEST_CASE("Blocks end between lines wherever the line ends fall", "[documents]") {
  const documents_test::Fixture files;
  const std::string end = GENERATE("\n", "\r\n", "\r");
  // Lines of many lengths, so that a block's end meets each byte of a line end and of a record.
  std::string content;
  std::vector<std::string> wanted;
  for (int i = 0; content.size() < 6'000'000; ++i) {
    wanted.push_back(std::to_string(i) +
                     std::string(static_cast<size_t>(i % 37) + (i % 1000 == 999 ? 200'003 : 0), 'x'));
    content += "{\"text\": \"" + wanted.back() + "\"}" + end;
  }
  CHECK(documents_test::read_file_as(files.write("a.jsonl", content)) == wanted);
  for (size_t shift = 1; shift < 4; ++shift) {
    const std::string moved = std::string(shift, ' ') + content;
    CHECK(documents_test::read_file_as(files.write("a.jsonl", moved)) == wanted);
  }
  // Line numbers count over the blocks.
  config::Prepare settings;
  settings.input = {files.write("b.jsonl", content + "oops" + end)};
  const std::string message = test::message_of<UserError>([&] { documents_test::read_all(settings); });
  CHECK(test::contains(message, "b.jsonl:" + std::to_string(wanted.size() + 1) + ": "));
}

TEST_CASE("Bad records are skipped and counted by kind where that is asked for", "[documents]") {
  const documents_test::Fixture files;
  config::Prepare settings;
  settings.on_error = "skip";
  settings.max_record_bytes = 2'000'000;
  const auto good = [](const std::string& text) { return "{\"text\": \"" + text + "\"}\n"; };
  const std::string lines = good("1") + "oops\n" + good("2") + "{\"text\": \"\xE9\"}\n" +
                            "{\"body\": \"x\"}\n" + "{\"text\": null}\n" + "{\"text\": 5}\n" +
                            good(std::string(2'500'000, 'x')) + good("3") +
                            good(std::string(9'000'000, 'x')) + good("4") + "{\"text\": \"cut";
  settings.input = {files.write("a.jsonl", lines), files.write("b.txt", "caf\xE9"),
                    files.write("c.txt", "fine"), files.write("d.txt", std::string(2'000'001, 'y')),
                    files.write("e.jsonl", good(std::string(9'000'000, 'z')))};
  InputReader reader(settings, find_inputs(settings), 1);
  SkippedRecords skipped;
  std::vector<std::string> documents;
  int64_t input_bytes = 0;
  for (RawDocuments raw; reader.next(&raw);) {
    CHECK(raw.bytes.size() < 4'000'000);
    const SplitDocuments split = split_documents(raw, settings);
    documents.insert(documents.end(), split.texts.begin(), split.texts.end());
    skipped.add(split.skipped);
    input_bytes += raw.input_bytes;
  }
  CHECK(documents == std::vector<std::string>{"1", "2", "3", "4", "fine"});
  const auto count = [&](RecordFault fault) { return skipped.counts[static_cast<size_t>(fault)]; };
  CHECK(count(RecordFault::kBrokenJson) == 1);
  CHECK(count(RecordFault::kInvalidUtf8) == 2);
  CHECK(count(RecordFault::kKeyMissing) == 1);
  CHECK(count(RecordFault::kNull) == 1);
  CHECK(count(RecordFault::kNotText) == 1);
  CHECK(count(RecordFault::kTooLong) == 4);
  CHECK(count(RecordFault::kCutOffLine) == 1);
  CHECK(skipped.total() == 11);
  REQUIRE(skipped.examples.size() == SkippedRecords::kMaxExamples);
  CHECK(test::contains(skipped.examples[0], "a.jsonl:2: "));
  CHECK(test::contains(skipped.examples[4], "a.jsonl:7: "));
  CHECK(input_bytes == reader.total_bytes());
  settings.on_error = "stop";
  settings.input = {settings.input.back()};
  CHECK(test::contains(test::message_of<UserError>([&] { documents_test::read_all(settings); }),
                       "e.jsonl:1: expected records of at most 2000000 bytes"));
  settings.input = {files.path() + "/d.txt"};
  CHECK(test::contains(test::message_of<UserError>([&] { documents_test::read_all(settings); }),
                       "d.txt: expected records of at most"));
}

TEST_CASE("A packed file that unpacks to far more than it holds is read within the bounds", "[documents]") {
  const documents_test::Fixture files;
  config::Prepare settings;
  settings.max_record_bytes = 1 << 20;
  settings.on_error = "skip";
  std::string bomb = test::zstd("{\"text\": \"");
  const std::string filling = test::zstd(std::string(1 << 20, 'x'));
  for (int i = 0; i < 900; ++i) bomb += filling;
  bomb += test::zstd("\"}\n{\"text\": \"small\"}\n");
  settings.input = {files.write("a.jsonl.zst", bomb)};
  const int64_t before = documents_test::restart_peak_kb();
  InputReader reader(settings, find_inputs(settings), 1);
  int64_t skipped = 0;
  std::vector<std::string> texts;
  for (RawDocuments raw; reader.next(&raw);) {
    const SplitDocuments split = split_documents(raw, settings);
    skipped += split.skipped.total();
    texts.insert(texts.end(), split.texts.begin(), split.texts.end());
  }
  CHECK(skipped == 1);
  CHECK(texts == std::vector<std::string>{"small"});
  // Of the 900 MB it holds a few blocks at a time; a sanitizer keeps up to 256 MB of what was freed.
  CHECK(documents_test::peak_kb() - before < 400'000);
}

TEST_CASE("Inputs that cannot be read twice, or would be, are refused", "[documents]") {
  const documents_test::Fixture files;
  config::Prepare settings;
  files.write("a.txt", "x");
  settings.input = {files.path() + "/*.txt", files.path() + "/./a.txt"};
  CHECK(test::contains(test::message_of<UserError>([&] { find_inputs(settings); }),
                       "matched twice, the second time by"));
  settings.input = {"/dev/null"};
  CHECK(test::contains(test::message_of<UserError>([&] { find_inputs(settings); }),
                       "found a pipe or a device"));
  settings.input = {files.path()};
  CHECK(test::contains(test::message_of<UserError>([&] { find_inputs(settings); }),
                       "expected files, found a directory"));
}

TEST_CASE("Globs give their files in the order of the bytes of their names", "[documents]") {
  const documents_test::Fixture files;
  for (const std::string name : {"b10.txt", "b9.txt", "B.txt", "a.txt.gz", "\xC3\xA9.txt"})
    files.write(name, test::contains(name, ".gz") ? test::gzip(name) : name);
  config::Prepare settings;
  settings.input = {files.path() + "/*.txt*"};
  CHECK(documents_test::read_all(settings) ==
        std::vector<std::string>{"B.txt", "a.txt.gz", "b10.txt", "b9.txt", "\xC3\xA9.txt"});
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
