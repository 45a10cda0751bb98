#include "data/detail/hdf5_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "data/detail/hdf5_cursor.h"

namespace osdn::data::detail {
namespace hdf5_file_detail {

constexpr uint64_t kUndefined = ~uint64_t{0};
constexpr size_t kMaxMessages = 4096;  // of one object; a shard's root group has some ten
constexpr int kMaxRank = 32;
constexpr int kMaxLevels = 16;  // of a B-tree

enum MessageType : int {
  kDataspace = 0x01,
  kDatatype = 0x03,
  kExternalFiles = 0x07,
  kLayout = 0x08,
  kFilterPipeline = 0x0B,
  kAttribute = 0x0C,
  kContinuation = 0x10,
  kSymbolTable = 0x11,
  kAttributeInfo = 0x15
};
constexpr unsigned kSharedFlag = 2;

Hdf5Type parse_type(std::string_view bytes) {
  Hdf5Cursor cursor(bytes);
  const auto kind = static_cast<int>(cursor.number(1) & 15);
  const auto bits = static_cast<unsigned>(cursor.number(3));
  Hdf5Type type;
  type.size_bytes = cursor.number(4);
  type.big_endian = (bits & 1) != 0;
  const char* order = type.big_endian ? "big-endian" : "little-endian";
  switch (kind) {
    case 0: {
      type.is_signed = (bits & 8) != 0;
      type.name = fmt::format("{}int{}, {}", type.is_signed ? "" : "u", 8 * type.size_bytes, order);
      const bool whole = cursor.number(2) == 0 && cursor.number(2) == 8 * type.size_bytes;
      const bool known =
          type.size_bytes == 1 || type.size_bytes == 2 || type.size_bytes == 4 || type.size_bytes == 8;
      if (whole && known) type.kind = Hdf5Type::Kind::kInteger;
      if (!whole) type.name += ", padded";
      break;
    }
    case 1:
      type.kind = Hdf5Type::Kind::kFloat;
      type.name = fmt::format("float{}, {}", 8 * type.size_bytes, order);
      break;
    case 3:
      type.kind = Hdf5Type::Kind::kText;
      type.name = "string";
      break;
    case 6:
      type.name = "compound";
      break;
    case 8:
      type.name = "enumeration";
      break;
    case 9:
      type.name = "variable-length sequence";
      break;
    case 10:
      type.name = "array";
      break;
    default:
      type.name = "other";
  }
  return type;
}

/// Extents; one element has none.
std::vector<uint64_t> parse_dataspace(std::string_view bytes) {
  Hdf5Cursor cursor(bytes);
  const uint64_t version = cursor.number(1);
  const uint64_t rank = cursor.number(1);
  cursor.skip(1);
  const uint64_t null_space = 2;
  if (version == 1)
    cursor.skip(5);
  else if (cursor.number(1) == null_space)
    return {0};
  if (version < 1 || version > 2 || rank > kMaxRank) throw Hdf5Overrun();
  std::vector<uint64_t> dims;
  for (uint64_t i = 0; i < rank; ++i) dims.push_back(cursor.number(8));
  return dims;
}

uint64_t product(const std::vector<uint64_t>& dims, uint64_t unit) {
  uint64_t total = unit;
  for (const uint64_t extent : dims)
    if (__builtin_mul_overflow(total, extent, &total)) return kUndefined;
  return total;
}

std::vector<Hdf5Filter> parse_filters(std::string_view bytes) {
  Hdf5Cursor cursor(bytes);
  const uint64_t version = cursor.number(1);
  const uint64_t count = cursor.number(1);
  if (version == 1) cursor.skip(6);
  std::vector<Hdf5Filter> filters;
  for (uint64_t i = 0; i < count; ++i) {
    Hdf5Filter filter;
    filter.id = static_cast<int>(cursor.number(2));
    const bool named = version == 1 || filter.id >= 256;
    const uint64_t name_bytes = named ? cursor.number(2) : 0;
    cursor.skip(2);
    const uint64_t num_values = cursor.number(2);
    const std::string_view name = cursor.text(name_bytes);
    filter.name = name.substr(0, name.find('\0'));
    cursor.skip(4 * num_values + (version == 1 && num_values % 2 != 0 ? 4 : 0));
    filters.push_back(std::move(filter));
  }
  return filters;
}

int64_t to_integer(const std::string& bytes, const Hdf5Type& type) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t from_top = type.big_endian ? i : bytes.size() - 1 - i;
    value = value << 8 | static_cast<unsigned char>(bytes[from_top]);
  }
  const unsigned unused_bits = 64 - 8 * static_cast<unsigned>(bytes.size());
  const auto shifted = static_cast<int64_t>(value << unused_bits);
  return type.is_signed ? shifted >> unused_bits : static_cast<int64_t>(value);
}

}  // namespace hdf5_file_detail

uint64_t Hdf5Dataset::num_elements() const { return hdf5_file_detail::product(dims, 1); }

void Hdf5File::damaged(const std::string& reason) const {
  throw DataError(
      "{}: damaged HDF5 file, or one with structures that shards do not have: {} (make it again with "
      "`osdn prepare`)",
      file_.path(), reason);
}

std::string Hdf5File::bytes(uint64_t address, uint64_t size_bytes, const char* what) const {
  if (address > size_bytes_ || size_bytes > size_bytes_ - address)
    damaged(fmt::format("{} lies outside of the file's {} bytes", what, size_bytes_));
  std::string content(size_bytes, '\0');
  for (size_t done = 0; done < content.size();) {
    const ssize_t got = ::pread(file_.descriptor(), content.data() + done, content.size() - done,
                                static_cast<off_t>(address + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw EnvironmentError("{}: cannot read {}: {}", file_.path(), what, std::strerror(errno));
    if (got == 0) damaged(fmt::format("{} is cut off", what));
    done += static_cast<size_t>(got);
  }
  return content;
}

Hdf5File::Hdf5File(const File& file) : file_(file), size_bytes_(file.size_bytes()) {
  namespace detail = hdf5_file_detail;
  constexpr uint64_t kSuperblockBytes = 96;
  if (size_bytes_ < kSuperblockBytes)
    throw DataError(
        "{}: truncated: {} bytes are less than an HDF5 superblock (make it again with `osdn prepare`)",
        file_.path(), size_bytes_);
  const std::string superblock = bytes(0, kSuperblockBytes, "the superblock");
  Hdf5Cursor cursor(superblock);
  cursor.skip(8);  // the signature, which the caller has looked at
  const uint64_t version = cursor.number(1);
  cursor.skip(4);
  const uint64_t offset_bytes = cursor.number(1);
  const uint64_t length_bytes = cursor.number(1);
  if (version != 0 || offset_bytes != 8 || length_bytes != 8)
    damaged(fmt::format(
        "a superblock of version {} with offsets of {} bytes; write it in the library's default format",
        version, offset_bytes));
  cursor.skip(9);
  if (cursor.number(8) != 0) damaged("it does not begin at the file's first byte");
  cursor.skip(8);
  const uint64_t end = cursor.number(8);
  if (end > size_bytes_)
    throw DataError(
        "{}: truncated: the file has {} bytes, its superblock says {} (make it again with `osdn prepare`)",
        file_.path(), size_bytes_, end);
  cursor.skip(16);
  const uint64_t root = cursor.number(8);
  bool is_group = false;
  try {
    for (const Message& message : object_header(root)) {
      if (message.type == detail::kSymbolTable) {
        Hdf5Cursor table(message.body);
        const uint64_t tree = table.number(8);
        const uint64_t heap = table.number(8);
        if (!is_group) read_group(tree, heap);
        is_group = true;
      } else if (message.type == detail::kAttribute) {
        std::string name;
        Attribute attribute = parse_attribute(message, &name);
        attributes_.emplace(std::move(name), std::move(attribute));
      } else if (message.type == detail::kAttributeInfo) {
        damaged("attributes in a newer format; write it in the library's default format");
      }
    }
  } catch (const Hdf5Overrun& overrun) {
    damaged(fmt::format("in the root group {}", overrun.what()));
  }
  if (!is_group) damaged("the root object is no group of the default format");
}

std::vector<Hdf5File::Message> Hdf5File::object_header(uint64_t address) const {
  namespace detail = hdf5_file_detail;
  const std::string prefix = bytes(address, 16, "an object header");
  Hdf5Cursor cursor(prefix);
  if (const uint64_t version = cursor.number(1); version != 1)
    damaged("an object header of a newer format; write it in the library's default format");
  cursor.skip(1);
  const uint64_t num_messages = cursor.number(2);
  cursor.skip(4);
  std::vector<std::pair<uint64_t, uint64_t>> blocks = {{address + 16, cursor.number(4)}};  // address, size
  std::vector<Message> messages;
  uint64_t taken = 0;
  // Blocks are appended while they are read. Each message counts, so blocks that name each other come to an
  // end.
  for (size_t block = 0; block < blocks.size() && taken < num_messages; ++block) {
    const std::string content =
        bytes(blocks[block].first, blocks[block].second, "a block of an object header");
    Hdf5Cursor fields(content);
    while (fields.rest() >= 8 && taken < num_messages) {
      if (++taken > detail::kMaxMessages) damaged("an object header of too many messages");
      Message message;
      message.type = static_cast<int>(fields.number(2));
      const uint64_t size = fields.number(2);
      message.flags = static_cast<uint8_t>(fields.number(1));
      fields.skip(3);
      message.body = fields.text(size);
      if (message.type == detail::kContinuation) {
        Hdf5Cursor next(message.body);
        const uint64_t next_address = next.number(8);
        blocks.emplace_back(next_address, next.number(8));
      } else {
        messages.push_back(std::move(message));
      }
    }
  }
  return messages;
}

void Hdf5File::read_group(uint64_t tree, uint64_t heap) {
  const std::string header = bytes(heap, 32, "the heap of names");
  Hdf5Cursor cursor(header);
  if (cursor.text(4) != "HEAP") damaged("the root group's heap of names is none");
  cursor.skip(4);
  const uint64_t names_bytes = cursor.number(8);
  cursor.skip(8);
  const std::string names = bytes(cursor.number(8), names_bytes, "the names of the root group");

  // A B-tree whose leaves are symbol nodes; its keys only say where to look, and all is read.
  std::set<uint64_t> seen;
  std::vector<uint64_t> nodes = {tree};
  while (!nodes.empty()) {
    const uint64_t address = nodes.back();
    nodes.pop_back();
    if (!seen.insert(address).second) damaged("the root group's tree meets itself");
    const std::string header_bytes = bytes(address, 24, "a node of the root group's tree");
    Hdf5Cursor node_header(header_bytes);
    if (node_header.text(4) != "TREE" || node_header.number(1) != 0) damaged("the root group's tree is none");
    const uint64_t level = node_header.number(1);
    const uint64_t count = node_header.number(2);
    if (level > hdf5_file_detail::kMaxLevels) damaged("the root group's tree is too deep");
    const std::string body = bytes(address + 24, 8 + 16 * count, "a node of the root group's tree");
    Hdf5Cursor entries(body);
    for (uint64_t i = 0; i < count; ++i) {
      entries.skip(8);
      const uint64_t child = entries.number(8);
      if (level > 0)
        nodes.push_back(child);
      else if (seen.insert(child).second)
        read_symbols(child, names);
    }
  }
}

void Hdf5File::read_symbols(uint64_t node, const std::string& names) {
  const std::string header = bytes(node, 8, "a symbol node");
  Hdf5Cursor cursor(header);
  if (cursor.text(4) != "SNOD") damaged("a symbol node is none");
  cursor.skip(2);
  const uint64_t count = cursor.number(2);
  const std::string body = bytes(node + 8, 40 * count, "a symbol node");
  Hdf5Cursor entries(body);
  constexpr uint64_t kSoftLink = 2;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t name = entries.number(8);
    const uint64_t address = entries.number(8);
    const uint64_t kind = entries.number(4);
    entries.skip(20);
    if (name >= names.size()) damaged("a name lies outside of the heap of names");
    if (kind != kSoftLink) links_.emplace(names.substr(name, names.find('\0', name) - name), address);
  }
}

Hdf5File::Attribute Hdf5File::parse_attribute(const Message& message, std::string* name) const {
  if ((message.flags & hdf5_file_detail::kSharedFlag) != 0) damaged("a shared attribute");
  Hdf5Cursor cursor(message.body);
  const uint64_t version = cursor.number(1);
  if (version < 1 || version > 3) damaged(fmt::format("an attribute of version {}", version));
  const uint64_t flags = cursor.number(1);
  if (version > 1 && flags != 0) damaged("an attribute of a named type");
  const uint64_t name_bytes = cursor.number(2);
  const uint64_t type_bytes = cursor.number(2);
  const uint64_t space_bytes = cursor.number(2);
  if (version == 3) cursor.skip(1);  // the name's encoding
  const auto field = [&](uint64_t size) {
    const std::string_view content = cursor.text(size);
    if (version == 1) cursor.align();
    return content;
  };
  const std::string_view padded_name = field(name_bytes);
  *name = padded_name.substr(0, padded_name.find('\0'));
  Attribute attribute;
  attribute.type = hdf5_file_detail::parse_type(field(type_bytes));
  attribute.dims = hdf5_file_detail::parse_dataspace(field(space_bytes));
  // Only values of one element are asked for; of other types the size in the file may mean something else.
  const bool readable =
      attribute.type.kind == Hdf5Type::Kind::kInteger || attribute.type.kind == Hdf5Type::Kind::kText;
  if (readable && hdf5_file_detail::product(attribute.dims, 1) == 1)
    attribute.value = cursor.text(attribute.type.size_bytes);
  return attribute;
}

std::optional<int64_t> Hdf5File::integer_attribute(const std::string& name) const {
  const auto found = attributes_.find(name);
  if (found == attributes_.end() || found->second.type.kind != Hdf5Type::Kind::kInteger ||
      found->second.value.empty())
    return std::nullopt;
  return hdf5_file_detail::to_integer(found->second.value, found->second.type);
}

std::optional<std::string> Hdf5File::text_attribute(const std::string& name) const {
  const auto found = attributes_.find(name);
  if (found == attributes_.end() || found->second.type.kind != Hdf5Type::Kind::kText ||
      found->second.value.empty())
    return std::nullopt;
  const std::string& value = found->second.value;
  return value.substr(0, value.find('\0'));
}

std::optional<Hdf5Dataset> Hdf5File::dataset(const std::string& name) const {
  namespace detail = hdf5_file_detail;
  const auto link = links_.find(name);
  if (link == links_.end()) return std::nullopt;
  Hdf5Dataset dataset;
  std::optional<Message> layout;
  bool has_space = false;
  try {
    for (Message& message : object_header(link->second)) {
      const bool wanted = message.type == detail::kDataspace || message.type == detail::kDatatype ||
                          message.type == detail::kLayout || message.type == detail::kFilterPipeline;
      if (wanted && (message.flags & detail::kSharedFlag) != 0)
        damaged(fmt::format("dataset `{}` shares its description with another", name));
      if (message.type == detail::kExternalFiles)
        damaged(fmt::format("dataset `{}` lies in other files", name));
      if (message.type == detail::kDataspace) {
        dataset.dims = detail::parse_dataspace(message.body);
        has_space = true;
      }
      if (message.type == detail::kDatatype) dataset.type = detail::parse_type(message.body);
      if (message.type == detail::kFilterPipeline) dataset.filters = detail::parse_filters(message.body);
      if (message.type == detail::kLayout) layout = std::move(message);
    }
    if (!has_space || !layout || dataset.type.size_bytes == 0)
      damaged(fmt::format("dataset `{}` has no type, extent or layout", name));
    // Another type or rank is the caller's to refuse, with its name; its data are nobody's.
    if (dataset.type.kind == Hdf5Type::Kind::kInteger && dataset.dims.size() == 1)
      parse_layout(*layout, &dataset);
  } catch (const Hdf5Overrun& overrun) {
    damaged(fmt::format("in dataset `{}` {}", name, overrun.what()));
  }
  return dataset;
}

}  // namespace osdn::data::detail
