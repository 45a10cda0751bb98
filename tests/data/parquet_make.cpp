// Writes Parquet files for the tests, in a process of its own, since Arrow must not meet the other libraries.
//   parquet_make OUT ROWS SHAPE CODEC ROWS_PER_GROUP
// ROWS: a file of texts, each followed by the byte 0x1E; the text 0x15 stands for null. SHAPE: flat | nested
// (data.text) | dotted (a column named "data.text" beside data.text) | list | number | binary (without the
// text mark).
#include <arrow/io/file.h>
#include <fmt/format.h>
#include <parquet/column_writer.h>
#include <parquet/exception.h>
#include <parquet/file_writer.h>
#include <parquet/schema.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace osdn::data::parquet_make {

using parquet::Repetition;
using parquet::schema::GroupNode;
using parquet::schema::NodePtr;
using parquet::schema::NodeVector;
using parquet::schema::PrimitiveNode;

const std::string kNull = "\x15";

NodePtr text_node(const std::string& name, Repetition::type repetition = Repetition::OPTIONAL) {
  return PrimitiveNode::Make(name, repetition, parquet::LogicalType::String(), parquet::Type::BYTE_ARRAY);
}

std::shared_ptr<GroupNode> schema_of(const std::string& shape) {
  NodeVector fields = {PrimitiveNode::Make("id", Repetition::REQUIRED, parquet::Type::INT64)};
  const NodePtr data =
      GroupNode::Make("data", Repetition::OPTIONAL, NodeVector{text_node("url"), text_node("text")});
  if (shape == "flat") fields.push_back(text_node("text"));
  if (shape == "binary")
    fields.push_back(PrimitiveNode::Make("text", Repetition::REQUIRED, parquet::Type::BYTE_ARRAY));
  if (shape == "list") fields.push_back(text_node("text", Repetition::REPEATED));
  if (shape == "number")
    fields.push_back(PrimitiveNode::Make("text", Repetition::REQUIRED, parquet::Type::DOUBLE));
  if (shape == "nested") fields.push_back(data);
  if (shape == "dotted") fields.insert(fields.end(), {data, text_node("data.text")});
  return std::static_pointer_cast<GroupNode>(GroupNode::Make("schema", Repetition::REQUIRED, fields));
}

/// `prefix` comes before each text, so that tests see which column was read.
void write_texts(parquet::ByteArrayWriter* writer, const std::vector<std::string>& rows,
                 const std::string& prefix) {
  const int16_t defined = writer->descr()->max_definition_level();
  for (const std::string& row : rows) {
    const bool null = row == kNull && defined > 0;
    const std::string text = prefix + row;
    const parquet::ByteArray value(static_cast<uint32_t>(text.size()),
                                   reinterpret_cast<const uint8_t*>(text.data()));
    const int16_t level = static_cast<int16_t>(null ? defined - 1 : defined);
    const int16_t first_of_list = 0;
    writer->WriteBatch(1, &level, &first_of_list, &value);
  }
}

void write_column(parquet::ColumnWriter* writer, const std::vector<std::string>& rows) {
  const std::string path = writer->descr()->path()->ToDotString();
  const auto count = static_cast<int64_t>(rows.size());
  if (writer->type() == parquet::Type::INT64) {
    const std::vector<int64_t> ids(rows.size(), 7);
    static_cast<parquet::Int64Writer*>(writer)->WriteBatch(count, nullptr, nullptr, ids.data());
  } else if (writer->type() == parquet::Type::DOUBLE) {
    const std::vector<double> numbers(rows.size(), 0.5);
    static_cast<parquet::DoubleWriter*>(writer)->WriteBatch(count, nullptr, nullptr, numbers.data());
  } else {
    const bool nested = writer->descr()->path()->ToDotVector().size() > 1;
    write_texts(static_cast<parquet::ByteArrayWriter*>(writer), rows,
                path == "data.url"                 ? "url "
                : nested && rows.front() == "mark" ? "nested "
                                                   : "");
  }
}

void write_file(const std::string& path, const std::vector<std::string>& rows, const std::string& shape,
                arrow::Compression::type codec, size_t rows_per_group) {
  const auto sink = arrow::io::FileOutputStream::Open(path);
  PARQUET_THROW_NOT_OK(sink.status());
  const auto properties = parquet::WriterProperties::Builder()
                              .compression(codec)
                              ->enable_page_checksum()
                              ->data_pagesize(64 << 10)
                              ->build();
  const auto file = parquet::ParquetFileWriter::Open(*sink, schema_of(shape), properties);
  for (size_t begin = 0; begin < rows.size(); begin += rows_per_group) {
    const size_t end = std::min(rows.size(), begin + rows_per_group);
    const std::vector<std::string> part(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                                        rows.begin() + static_cast<std::ptrdiff_t>(end));
    parquet::RowGroupWriter* group = file->AppendRowGroup();
    for (int column = 0; column < group->num_columns(); ++column) write_column(group->NextColumn(), part);
    group->Close();
  }
  file->Close();
  PARQUET_THROW_NOT_OK((*sink)->Close());
}

}  // namespace osdn::data::parquet_make

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  std::ifstream input(argv[2], std::ios::binary);
  std::vector<std::string> rows;
  for (std::string row; std::getline(input, row, '\x1E');) rows.push_back(row);
  const std::string codec = argv[4];
  osdn::data::parquet_make::write_file(argv[1], rows, argv[3],
                                       codec == "zstd"     ? arrow::Compression::ZSTD
                                       : codec == "snappy" ? arrow::Compression::SNAPPY
                                       : codec == "gzip"   ? arrow::Compression::GZIP
                                                           : arrow::Compression::UNCOMPRESSED,
                                       std::stoul(argv[5]));
  return 0;
}
