#include "data/detail/parquet_rows.h"

#include <sys/resource.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "data/documents.h"
#include "tests/data/packed.h"
#include "tests/data/parquet_file.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace parquet_rows_test {

config::Prepare settings_for(const std::string& path, const std::string& key = "text") {
  config::Prepare settings;
  settings.input = {path};
  settings.text_key = key;
  return settings;
}

struct Reading {
  std::vector<std::string> texts;
  SkippedRecords skipped;
  int64_t blocks = 0;
  int64_t input_bytes = 0;
  int64_t total_bytes = 0;
};

Reading read_all(const config::Prepare& settings) {
  Reading reading;
  InputReader reader(settings, find_inputs(settings), 1);
  reading.total_bytes = reader.total_bytes();
  for (RawDocuments raw; reader.next(&raw);) {
    SplitDocuments split = split_documents(raw, settings);
    std::move(split.texts.begin(), split.texts.end(), std::back_inserter(reading.texts));
    reading.skipped.add(split.skipped);
    reading.input_bytes += raw.input_bytes;
    ++reading.blocks;
  }
  return reading;
}

std::vector<std::string> numbered_texts(int count, size_t length) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i)
    texts.push_back(std::to_string(i) + std::string(length, static_cast<char>('a' + i % 26)));
  return texts;
}

}  // namespace parquet_rows_test

TEST_CASE("Without its reader Parquet is refused with the cure", "[parquet_rows]") {
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/a.parquet", "PAR1");
  const std::string message = test::message_of<EnvironmentError>([&] {
    if (!test::has_parquet()) find_inputs(parquet_rows_test::settings_for(folder.path() + "/a.parquet"));
  });
  CAPTURE(message);
  CHECK((test::has_parquet() || test::contains(message, "a.parquet: reading Parquet needs ")));
  CHECK((test::has_parquet() || test::contains(message, "run scripts/setup.sh and build again")));
  CHECK(test::has_parquet() == (::access(detail::parquet_reader_path().c_str(), X_OK) == 0));
}

TEST_CASE("Parquet rows are documents in their order, whatever the codec and the row groups",
          "[parquet_rows]") {
  if (!test::has_parquet()) return;
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.parquet";
  std::vector<std::string> texts = parquet_rows_test::numbered_texts(3000, 900);
  texts[5] = "";
  texts[6] = "caf\xC3\xA9 \xE2\x96\x81 \r\n tab\t";
  texts[7] = std::string("a\0b", 3);
  texts[2000] = std::string(3'000'000, 'x');
  for (const std::string codec : {"none", "snappy", "gzip", "zstd"})
    for (const size_t group : {size_t{1000}, size_t{3000}}) {
      CAPTURE(codec, group);
      test::write_parquet(path, texts, "flat", codec, group);
      const parquet_rows_test::Reading reading =
          parquet_rows_test::read_all(parquet_rows_test::settings_for(path));
      CHECK(reading.texts == texts);
      CHECK(reading.blocks >= 3);  // about a megabyte each, and one long row
      CHECK(reading.input_bytes == reading.total_bytes);
    }
  // Packed as a whole: it is unpacked beside, and the rows are the same.
  for (const std::string ending : {".gz", ".zst"}) {
    const std::string packed = path + ending;
    atomic_write(packed, ending == ".gz" ? test::gzip(read_file(path)) : test::zstd(read_file(path)));
    const parquet_rows_test::Reading reading =
        parquet_rows_test::read_all(parquet_rows_test::settings_for(packed));
    CHECK(reading.texts == texts);
    CHECK(reading.input_bytes == reading.total_bytes);
  }
}

TEST_CASE("A Parquet column is found by its name, inside others, and by a name with a dot first",
          "[parquet_rows]") {
  if (!test::has_parquet()) return;
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.parquet";
  const std::vector<std::string> rows = {"mark", "two"};
  test::write_parquet(path, rows, "nested");
  CHECK(parquet_rows_test::read_all(parquet_rows_test::settings_for(path, "data.text")).texts.at(1) ==
        "nested two");
  CHECK(parquet_rows_test::read_all(parquet_rows_test::settings_for(path, "data.url")).texts.at(1) ==
        "url two");
  test::write_parquet(path, rows, "dotted");
  CHECK(parquet_rows_test::read_all(parquet_rows_test::settings_for(path, "data.text")).texts == rows);
  test::write_parquet(path, rows, "binary");
  CHECK(parquet_rows_test::read_all(parquet_rows_test::settings_for(path)).texts == rows);
}

TEST_CASE("A Parquet file without the text says which columns it has", "[parquet_rows]") {
  if (!test::has_parquet()) return;
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.parquet";
  const auto refusal = [&](const std::string& shape, const std::string& key) {
    test::write_parquet(path, {"x"}, shape);
    const std::string message = test::message_of<UserError>(
        [&] { parquet_rows_test::read_all(parquet_rows_test::settings_for(path, key)); });
    CAPTURE(message);
    return message;
  };
  CHECK(test::contains(refusal("nested", "text"),
                       "a.parquet: expected text under \"text\", found no such column (set "
                       "prepare.text_key); the columns are: id (int64), data.url (text), data.text (text)"));
  CHECK(test::contains(refusal("nested", "data"), "found a column with columns inside"));
  CHECK(test::contains(refusal("flat", "id"), "found a column of kind int64"));
  CHECK(test::contains(refusal("number", "text"), "found a column of kind double"));
  CHECK(test::contains(refusal("list", "text"), "found a column of kind list"));
}

TEST_CASE("Bad Parquet rows are refused by row, or skipped and counted", "[parquet_rows]") {
  if (!test::has_parquet()) return;
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.parquet";
  std::vector<std::string> rows = parquet_rows_test::numbered_texts(2500, 600);
  config::Prepare settings = parquet_rows_test::settings_for(path);
  const auto refusal = [&] {
    return test::message_of<UserError>([&] { parquet_rows_test::read_all(settings); });
  };
  rows[2100] = "caf\xE9";
  test::write_parquet(path, rows);
  CHECK(test::contains(refusal(),
                       "a.parquet: row 2101: expected UTF-8, found byte 0xE9 at byte 4 of the text"));
  rows[1200] = test::kNullText;
  test::write_parquet(path, rows);
  CHECK(test::contains(refusal(), "a.parquet: row 1201: expected text under \"text\", found null"));
  rows[0] = std::string(5000, 'y');
  settings.max_record_bytes = 4000;
  test::write_parquet(path, rows);
  CHECK(test::contains(refusal(), "a.parquet: row 1: expected records of at most 4000 bytes"));
  settings.on_error = "skip";
  const parquet_rows_test::Reading reading = parquet_rows_test::read_all(settings);
  CHECK(reading.texts.size() == 2497);
  CHECK(reading.skipped.counts[static_cast<size_t>(RecordFault::kInvalidUtf8)] == 1);
  CHECK(reading.skipped.counts[static_cast<size_t>(RecordFault::kNull)] == 1);
  CHECK(reading.skipped.counts[static_cast<size_t>(RecordFault::kTooLong)] == 1);
}

TEST_CASE("A damaged Parquet file is an error by name, never an end or other text", "[parquet_rows]") {
  if (!test::has_parquet()) return;
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.parquet";
  const std::vector<std::string> texts = parquet_rows_test::numbered_texts(500, 200);
  test::write_parquet(path, texts, "flat", "snappy", 200);
  const std::string whole = read_file(path);
  const auto outcome = [&](const std::string& content) {
    atomic_write(path, content);
    std::vector<std::string> read;
    const std::string message = test::message_of<Error>(
        [&] { read = parquet_rows_test::read_all(parquet_rows_test::settings_for(path)).texts; });
    CAPTURE(message);
    if (message.empty()) CHECK(read == texts);
    if (!message.empty()) CHECK(test::contains(message, "a.parquet"));
    return message;
  };
  CHECK(outcome(whole).empty());
  CHECK(test::contains(outcome(""), "not a whole Parquet file"));
  CHECK(test::contains(outcome("PAR1"), "not a whole Parquet file"));
  for (size_t cut = 1; cut < whole.size(); cut += whole.size() / 7 + 1)
    CHECK(test::contains(outcome(whole.substr(0, cut)), "not a whole Parquet file"));
  int64_t refused = 0;
  for (size_t i = 0; i < whole.size(); i += whole.size() / 60 + 1) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x41);
    CAPTURE(i);
    refused += outcome(changed).empty() ? 0 : 1;
  }
  CHECK(refused > 20);  // the column of numbers, which is not read, takes some
}

TEST_CASE("A reader that is left before its end does not stay behind", "[parquet_rows]") {
  if (!test::has_parquet()) return;
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.parquet";
  test::write_parquet(path, parquet_rows_test::numbered_texts(8000, 1000));
  for (int i = 0; i < 3; ++i) {
    detail::ParquetRows rows(path, detail::Compression::kNone, "text");
    std::string texts;
    std::vector<int64_t> lengths;
    CHECK(rows.next(&texts, &lengths));
    CHECK(rows.rows_read() < rows.num_rows());
  }
  // Every child was waited for.
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

}  // namespace osdn::data
