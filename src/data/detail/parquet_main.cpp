// The Parquet reader (detail/parquet_frames.h): sends the texts of one column, row group by row group and
// page by page, so that memory is a page however large the file is.
//   osdn_parquet TEXT_KEY 3<FILE
#include <arrow/io/file.h>
#include <fmt/format.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "data/detail/parquet_frames.h"

namespace osdn::data::detail {
namespace parquet_main {

constexpr int64_t kLevels = 1024;          // rows decoded at once
constexpr int64_t kBufferBytes = 1 << 20;  // of the file, read ahead
constexpr int kMaxListedColumns = 30;

/// The file is sound but not what was asked for.
class WrongColumn : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void write_all(const void* data, size_t size_bytes) {
  const char* next = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t put = ::write(STDOUT_FILENO, next, size_bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) ::_exit(1);  // nobody reads any more
    next += put;
    size_bytes -= static_cast<size_t>(put);
  }
}

void send(FrameKind kind, std::string_view payload) {
  const FrameHeader header{.kind = kind, .num_rows = 0, .size_bytes = payload.size()};
  write_all(&header, sizeof header);
  write_all(payload.data(), payload.size());
}

/// Rows that wait to be sent together.
class Batch {
 public:
  void add(const parquet::ByteArray& text) {
    lengths_.push_back(text.len);
    texts_.append(reinterpret_cast<const char*>(text.ptr), text.len);
    send_when_full();
  }
  void add_null() {
    lengths_.push_back(kNullRow);
    send_when_full();
  }
  void flush() {
    if (lengths_.empty()) return;
    const size_t lengths_bytes = lengths_.size() * sizeof(int64_t);
    const FrameHeader header{.kind = FrameKind::kRows,
                             .num_rows = static_cast<uint32_t>(lengths_.size()),
                             .size_bytes = lengths_bytes + texts_.size()};
    write_all(&header, sizeof header);
    write_all(lengths_.data(), lengths_bytes);
    write_all(texts_.data(), texts_.size());
    lengths_.clear();
    texts_.clear();
  }

 private:
  void send_when_full() {
    if (static_cast<int64_t>(texts_.size()) >= kParquetBatchBytes ||
        static_cast<int64_t>(lengths_.size()) >= kParquetBatchRows)
      flush();
  }

  std::vector<int64_t> lengths_;
  std::string texts_;
};

/// The column at a key or a dotted path of names; nullptr when there is none.
const parquet::schema::Node* find_node(const parquet::schema::GroupNode& group, std::string_view key) {
  for (int i = 0; i < group.field_count(); ++i)
    if (group.field(i)->name() == key) return group.field(i).get();
  for (size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.', dot + 1))
    for (int i = 0; i < group.field_count(); ++i) {
      const parquet::schema::Node& child = *group.field(i);
      if (child.name() != key.substr(0, dot) || !child.is_group()) continue;
      if (const auto* node =
              find_node(static_cast<const parquet::schema::GroupNode&>(child), key.substr(dot + 1)))
        return node;
    }
  return nullptr;
}

std::string kind_of(const parquet::ColumnDescriptor& column) {
  if (column.max_repetition_level() > 0) return "list";
  if (column.logical_type() && column.logical_type()->is_string()) return "text";
  std::string name = parquet::TypeToString(column.physical_type());
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return name;
}

std::string list_columns(const parquet::SchemaDescriptor& schema) {
  std::string list;
  for (int i = 0; i < std::min(schema.num_columns(), kMaxListedColumns); ++i)
    list += fmt::format("{}{} ({})", i == 0 ? "" : ", ", schema.Column(i)->path()->ToDotString(),
                        kind_of(*schema.Column(i)));
  return list + (schema.num_columns() > kMaxListedColumns ? ", ..." : "");
}

int find_column(const parquet::SchemaDescriptor& schema, const std::string& key) {
  const parquet::schema::Node* node = find_node(*schema.group_node(), key);
  if (node == nullptr || node->is_group())
    throw WrongColumn(fmt::format(
        "expected text under \"{}\", found {} (set prepare.text_key); the columns are: {}", key,
        node == nullptr ? "no such column" : "a column with columns inside", list_columns(schema)));
  const int index = schema.ColumnIndex(*node);
  if (index < 0) throw parquet::ParquetException("the schema does not hold together");
  const parquet::ColumnDescriptor& column = *schema.Column(index);
  const auto logical = column.logical_type();
  const bool text =
      column.physical_type() == parquet::Type::BYTE_ARRAY && column.max_repetition_level() == 0 &&
      (!logical || logical->is_string() || logical->is_none() || logical->is_enum() || logical->is_JSON());
  if (!text)
    throw WrongColumn(fmt::format(
        "expected text under \"{}\", found a column of kind {} (set prepare.text_key); the columns are: {}",
        key, kind_of(column), list_columns(schema)));
  return index;
}

void send_column(parquet::RowGroupReader& group, int index, Batch* batch) {
  const std::shared_ptr<parquet::ColumnReader> column = group.Column(index);
  auto& reader = static_cast<parquet::ByteArrayReader&>(*column);
  const int16_t defined = group.metadata()->schema()->Column(index)->max_definition_level();
  std::array<int16_t, kLevels> levels{};
  std::array<parquet::ByteArray, kLevels> values{};
  int64_t rows = 0;
  while (reader.HasNext()) {
    int64_t num_values = 0;
    const int64_t got = reader.ReadBatch(kLevels, levels.data(), nullptr, values.data(), &num_values);
    if (got == 0) break;
    rows += got;
    int64_t next = 0;
    for (int64_t i = 0; i < got; ++i) {
      if (defined > 0 && levels[static_cast<size_t>(i)] < defined) {
        batch->add_null();
      } else {
        if (next == num_values) throw parquet::ParquetException("a page holds fewer values than it says");
        batch->add(values[static_cast<size_t>(next++)]);
      }
    }
  }
  const int64_t expected = group.metadata()->num_rows();
  if (rows != expected)
    throw parquet::ParquetException(fmt::format("a row group of {} rows holds {}", expected, rows));
}

void send_file(const std::string& key) {
  const auto opened = arrow::io::ReadableFile::Open(kParquetFileDescriptor);
  if (!opened.ok()) throw parquet::ParquetException(opened.status().ToString());
  parquet::ReaderProperties properties = parquet::default_reader_properties();
  properties.enable_buffered_stream();
  properties.set_buffer_size(kBufferBytes);
  properties.set_page_checksum_verification(true);
  const auto file = parquet::ParquetFileReader::Open(*opened, properties);
  const auto metadata = file->metadata();
  const int index = find_column(*metadata->schema(), key);
  const int64_t num_rows = metadata->num_rows();
  send(FrameKind::kOpened, std::string_view(reinterpret_cast<const char*>(&num_rows), sizeof num_rows));
  Batch batch;
  for (int group = 0; group < metadata->num_row_groups(); ++group)
    send_column(*file->RowGroup(group), index, &batch);
  batch.flush();
  send(FrameKind::kEnd, {});
}

}  // namespace parquet_main
}  // namespace osdn::data::detail

int main(int argc, char** argv) {
  namespace detail = osdn::data::detail;
  if (argc != 2) {
    fmt::print(stderr, "osdn_parquet is started by `osdn prepare`, which reads Parquet files through it\n");
    return 2;
  }
  try {
    detail::parquet_main::send_file(argv[1]);
  } catch (const detail::parquet_main::WrongColumn& failure) {
    detail::parquet_main::send(detail::FrameKind::kUserError, failure.what());
  } catch (const std::exception& failure) {
    detail::parquet_main::send(detail::FrameKind::kDamagedError, failure.what());
  }
  return 0;
}
