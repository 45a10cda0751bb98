// Files that the HDF5 library wrote, read without it.
#include "data/detail/hdf5_file.h"

#include <hdf5.h>

#include <algorithm>
#include <functional>

#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace hdf5_file_test {

constexpr int64_t kCount = 1000;

std::vector<int64_t> values() {
  std::vector<int64_t> result(kCount);
  for (int64_t i = 0; i < kCount; ++i) result[static_cast<size_t>(i)] = i * 37 % 1009;
  return result;
}

/// A shard of values() whose tokens were created with the properties that `choose` sets.
void write(const std::string& path, const std::function<void(hid_t)>& choose,
           hid_t stored_type = H5T_STD_U32LE) {
  const std::vector<int64_t> tokens = values();
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  choose(creation);
  test::ForeignShard shard;
  shard.values = tokens.data();
  shard.dims[0] = kCount;
  shard.creation = creation;
  shard.stored_type = stored_type;
  test::write_foreign_shard(path, shard);
  H5Pclose(creation);
}

void set_chunk(hid_t creation, hsize_t elements) { H5Pset_chunk(creation, 1, &elements); }

std::vector<int64_t> read(const std::string& path) {
  const ShardReader reader(path);
  std::vector<int32_t> ids(kCount);
  // In pieces that begin and end inside of chunks.
  for (int64_t first = 0; first < kCount; first += 77)
    reader.read(first, std::min<int64_t>(77, kCount - first), ids.data() + first);
  return {ids.begin(), ids.end()};
}

}  // namespace hdf5_file_test

TEST_CASE("Every combination of filters and chunk sizes gives the elements back", "[hdf5_file]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  const int filters = GENERATE(0, 1, 2, 3, 4, 5, 6, 7);
  const hsize_t chunk = GENERATE(1, 7, 333, 999, 1000);
  const bool big_endian = GENERATE(false, true);
  CAPTURE(filters, chunk);
  hdf5_file_test::write(
      path,
      [&](hid_t creation) {
        hdf5_file_test::set_chunk(creation, chunk);
        if ((filters & 1) != 0) H5Pset_shuffle(creation);
        if ((filters & 2) != 0) H5Pset_deflate(creation, 6);
        if ((filters & 4) != 0) H5Pset_fletcher32(creation);
      },
      big_endian ? H5T_STD_U16BE : H5T_STD_I64LE);
  CHECK(hdf5_file_test::read(path) == hdf5_file_test::values());
}

TEST_CASE("A damaged chunk is refused by its place", "[hdf5_file]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  const bool checksum = GENERATE(false, true);
  hdf5_file_test::write(path, [&](hid_t creation) {
    hdf5_file_test::set_chunk(creation, 500);
    if (checksum)
      H5Pset_fletcher32(creation);
    else
      H5Pset_deflate(creation, 6);
  });
  const File file = File::open_for_reading(path);
  const auto dataset = detail::Hdf5File(file).dataset("tokens");
  REQUIRE(dataset.has_value());
  REQUIRE(dataset->chunks.size() == 2);
  std::string bytes = read_file(path);
  bytes[dataset->chunks[1].address + 3] ^= 1;
  atomic_write(path, bytes);
  const std::string message = test::message_of<DataError>([&] { hdf5_file_test::read(path); });
  CAPTURE(message);
  CHECK(test::contains(message, "s.h5: damaged: the chunk at element 500"));
}

TEST_CASE("Chunks that were never written are refused, not read as zeros", "[hdf5_file]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  hdf5_file_test::set_chunk(creation, 100);
  test::ForeignShard shard;  // without values
  shard.dims[0] = 1000;
  shard.creation = creation;
  test::write_foreign_shard(path, shard);
  H5Pclose(creation);
  CHECK(test::contains(test::message_of<DataError>([&] { ShardReader{path}; }), "some were never written"));
}

TEST_CASE("Newer formats of the library are refused with what to do", "[hdf5_file]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  H5Fclose(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access));
  H5Pclose(access);
  const std::string message = test::message_of<DataError>([&] { ShardReader{path}; });
  CAPTURE(message);
  CHECK(test::contains(message, "s.h5: "));
  CHECK(test::contains(message, "write it in the library's default format"));
}

TEST_CASE("A group of many datasets and attributes is read through all levels of its tree", "[hdf5_file]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  const hid_t h5 = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  for (int64_t i = 0; i < 600; ++i) test::put_numbers(h5, ("d" + std::to_string(i)).c_str(), {i, i + 1});
  for (int64_t i = 0; i < 40; ++i) test::put_number(h5, ("a" + std::to_string(i)).c_str(), -i);
  test::put_text(h5, "text", "a text");
  H5Fclose(h5);
  const File file = File::open_for_reading(path);
  const detail::Hdf5File read(file);
  for (int64_t i = 0; i < 600; ++i) {
    const auto dataset = read.dataset("d" + std::to_string(i));
    REQUIRE(dataset.has_value());
    CHECK(dataset->num_elements() == 2);
  }
  for (int64_t i = 0; i < 40; ++i) CHECK(read.integer_attribute("a" + std::to_string(i)) == -i);
  CHECK(read.text_attribute("text") == "a text");
  CHECK(!read.text_attribute("a1"));
  CHECK(!read.integer_attribute("absent"));
  CHECK(!read.dataset("absent"));
}

}  // namespace osdn::data
