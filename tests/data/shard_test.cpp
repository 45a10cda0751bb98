#include "data/shard.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/fs.h"
#include "data/detail/token_stream.h"
#include "data/sample_order.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {

TEST_CASE("A shard gives back what was written, with its documents and attributes", "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.h5";
  const int64_t vocab_size = GENERATE(40000, 65536, 65537, 70000);
  CAPTURE(vocab_size);
  const auto top = static_cast<int32_t>(vocab_size - 1);
  ShardWriter writer(
      path, {.tokenizer_digest = "d1", .vocab_size = vocab_size, .source_names = {"x.txt", "y.txt"}});
  writer.add_document({1, 32767, 32768}, 12);
  writer.add_document({1}, 0);
  writer.add_document({1, 39999, top}, 7);
  CHECK_FALSE(std::filesystem::exists(path));
  writer.finish();
  const ShardReader reader(path);
  std::vector<int32_t> tokens(7);
  reader.read(0, 7, tokens.data());
  CHECK(tokens == std::vector<int32_t>{1, 32767, 32768, 1, 1, 39999, top});
  reader.read(2, 2, tokens.data());
  CHECK(tokens[0] == 32768);
  CHECK(reader.document_offsets() == std::vector<int64_t>{0, 3, 4, 7});
  CHECK(reader.document_bytes() == std::vector<int64_t>{12, 0, 7});
  CHECK(reader.text_bytes() == 19);
  CHECK(reader.num_documents() == 3);
  CHECK(reader.tokenizer_digest() == "d1");
  CHECK(reader.source_names() == std::vector<std::string>{"x.txt", "y.txt"});
  CHECK(reader.stored_type() == (vocab_size > 65536 ? "uint32, little-endian" : "uint16, little-endian"));
  CHECK_NOTHROW(reader.verify());
  // Nothing but the shard is left in the folder.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()),
                      std::filesystem::directory_iterator()) == 1);
}

TEST_CASE("A shard writer refuses ids outside the vocabulary, naming file and position", "[shard]") {
  const TemporaryDirectory folder;
  ShardWriter writer(folder.path() + "/a.h5",
                     {.tokenizer_digest = "d", .vocab_size = 65536, .source_names = {}});
  writer.add_document({1, 2}, 2);
  for (const int32_t bad : {65536, 70000, -1}) {
    const std::string message = test::message_of<DataError>([&] { writer.add_document({5, bad}, 1); });
    CAPTURE(message);
    CHECK(test::contains(message, "a.h5: token 3 is " + std::to_string(bad)));
  }
}

TEST_CASE("An unfinished shard leaves nothing behind", "[shard]") {
  const TemporaryDirectory folder;
  {
    ShardWriter writer(folder.path() + "/a.h5",
                       {.tokenizer_digest = "d", .vocab_size = 10, .source_names = {}});
    writer.add_document({1, 2}, 2);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("Equal shards are equal bytes, also a second later", "[shard]") {
  const TemporaryDirectory folder;
  test::write_numbered_shard(folder.path() + "/a.h5", 0, {5000, 1, 70});
  ::sleep(1);  // file times of HDF5 have seconds
  test::write_numbered_shard(folder.path() + "/b.h5", 0, {5000, 1, 70});
  CHECK(read_file(folder.path() + "/a.h5") == read_file(folder.path() + "/b.h5"));
}

TEST_CASE("Integers of every width and byte order are read as what they mean", "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/foreign.h5";
  const std::vector<int64_t> wanted = {1, 2, 258, 511};
  test::ForeignShard shard;
  shard.values = wanted.data();
  shard.dims[0] = wanted.size();
  const std::vector<std::pair<hid_t, std::string>> types = {
      {H5T_STD_U16BE, "uint16, big-endian"},   {H5T_STD_I64LE, "int64, little-endian"},
      {H5T_STD_I32BE, "int32, big-endian"},    {H5T_STD_U32LE, "uint32, little-endian"},
      {H5T_STD_I16LE, "int16, little-endian"}, {H5T_STD_U64BE, "uint64, big-endian"}};
  for (const bool chunked : {false, true}) {
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk = 3;
    if (chunked) {
      H5Pset_chunk(creation, 1, &chunk);
      H5Pset_deflate(creation, 5);
    }
    shard.creation = creation;
    for (const auto& [type, name] : types) {
      CAPTURE(name, chunked);
      shard.stored_type = type;
      test::write_foreign_shard(path, shard);
      const ShardReader reader(path);
      std::vector<int32_t> tokens(4);
      reader.read(0, 4, tokens.data());
      CHECK(std::vector<int64_t>(tokens.begin(), tokens.end()) == wanted);
      CHECK(reader.stored_type() == name);
    }
    H5Pclose(creation);
  }
  const std::vector<int64_t> small = {1, 2, 200, 255};
  shard.creation = H5P_DEFAULT;
  shard.values = small.data();
  shard.stored_type = H5T_STD_U8LE;
  test::write_foreign_shard(path, shard);
  std::vector<int32_t> tokens(4);
  ShardReader(path).read(0, 4, tokens.data());
  CHECK(std::vector<int64_t>(tokens.begin(), tokens.end()) == small);
}

TEST_CASE("An id outside the vocabulary stops the reader with file and position", "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/bad.h5";
  const std::vector<int64_t> values = {1, 2, -1, 70000, int64_t{1} << 40, 69999};
  test::ForeignShard shard;
  shard.stored_type = H5T_STD_I64LE;
  shard.values = values.data();
  shard.dims[0] = values.size();
  test::write_foreign_shard(path, shard);
  const ShardReader reader(path);
  int32_t token = 0;
  for (const int64_t position : {2, 3, 4}) {
    const std::string message = test::message_of<DataError>([&] { reader.read(position, 1, &token); });
    CAPTURE(message);
    CHECK(test::contains(message, "bad.h5: token " + std::to_string(position) + " is " +
                                      std::to_string(values[static_cast<size_t>(position)])));
  }
  CHECK_NOTHROW(reader.read(5, 1, &token));
  CHECK(token == 69999);
}

TEST_CASE("Foreign datasets are refused with the type that was found", "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/foreign.h5";
  const std::vector<int64_t> values = {1, 2, 3, 4};
  test::ForeignShard shard;
  shard.values = values.data();
  shard.dims[0] = 4;
  const auto refusal = [&] {
    test::write_foreign_shard(path, shard);
    return test::message_of<DataError>([&] { ShardReader{path}; });
  };
  SECTION("float32") {
    shard.stored_type = H5T_IEEE_F32LE;
    CHECK(test::contains(refusal(), "foreign.h5: dataset `tokens`: expected integers, found float32"));
  }
  SECTION("two dimensions") {
    shard.rank = 2;
    shard.dims[0] = 2;
    shard.dims[1] = 2;
    CHECK(test::contains(refusal(), "expected one dimension, found 2 of uint16, little-endian"));
  }
  SECTION("a filter that is not installed") {
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk = 2;
    H5Pset_chunk(creation, 1, &chunk);
    // An optional filter that is absent may be named in a file and skipped when it is written.
    H5Pset_filter(creation, 32001, H5Z_FLAG_OPTIONAL, 0, nullptr);
    shard.creation = creation;
    const std::string message = refusal();
    H5Pclose(creation);
    CAPTURE(message);
    CHECK(test::contains(message, "filter 32001"));
    CHECK(test::contains(message, "not installed"));
  }
  SECTION("no attributes") {
    shard.attributes = false;
    CHECK(test::contains(refusal(), "not a shard: it has no text attribute `format`"));
  }
  SECTION("another version") {
    shard.format_version = 2;
    CHECK(test::contains(refusal(), "expected format version 1, found 2"));
  }
  SECTION("offsets that do not increase") {
    shard.offsets = {0, 2, 2, 4};
    CHECK(test::contains(refusal(), "document_offsets: entry 2 is 2 after 2"));
  }
  SECTION("offsets that end elsewhere") {
    shard.offsets = {0, 2, 5};
    CHECK(test::contains(refusal(), "document_offsets: expected 0 to 4, found 3 entries from 0 to 5"));
  }
}

TEST_CASE("Missing, empty, truncated and foreign files are refused by name", "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  const auto refusal = [&] { return test::message_of<Error>([&] { ShardReader{path}; }); };
  CHECK(test::contains(refusal(), "s.h5: no such shard"));
  atomic_write(path, "");
  CHECK(test::contains(refusal(), "s.h5: expected a shard, found an empty file"));
  atomic_write(path, "PK\x03\x04 not this");
  CHECK(test::contains(refusal(), "s.h5: expected an HDF5 file"));
  test::write_numbered_shard(path, 0, {3000});
  const std::string whole = read_file(path);
  for (const size_t cut : {size_t{10}, whole.size() / 2, whole.size() - 100}) {
    CAPTURE(cut);
    atomic_write(path, whole.substr(0, whole.size() - cut));
    const std::string message = test::message_of<DataError>([&] { ShardReader{path}; });
    CAPTURE(message);
    CHECK(test::contains(message, "s.h5: truncated"));
    CHECK(test::contains(message, "osdn prepare"));
  }
  CHECK(test::contains(test::message_of<EnvironmentError>([&] { ShardReader{folder.path()}; }),
                       "found a directory"));
}

TEST_CASE("A file whose writer died before closing it is refused", "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/dead.h5";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::vector<int64_t> values(1'000'000, 7);
    test::ForeignShard shard;
    shard.values = values.data();
    shard.dims[0] = values.size();
    test::open_foreign_shard(path, shard);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const std::string message = test::message_of<DataError>([&] { ShardReader{path}; });
  CAPTURE(message);
  CHECK(test::contains(message, "dead.h5"));
}

TEST_CASE("A flipped bit in the tokens is found by verify", "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  test::write_numbered_shard(path, 100, {3000});
  std::string bytes = read_file(path);
  const std::string needle("\x2C\x01\x00\x00\x2D\x01\x00\x00", 8);  // tokens 300 and 301 as uint32
  const size_t found = bytes.find(needle);
  REQUIRE(found != std::string::npos);
  bytes[found] = static_cast<char>(bytes[found] ^ 4);
  atomic_write(path, bytes);
  const ShardReader reader(path);
  const std::string message = test::message_of<DataError>([&] { reader.verify(); });
  CAPTURE(message);
  CHECK(test::contains(message, "s.h5: damaged"));
}

TEST_CASE(
    "A shard that another process has open for writing is refused with the reason, one for reading is not",
    "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  test::write_numbered_shard(path, 0, {100});
  ::setenv("HDF5_USE_FILE_LOCKING", "TRUE", 1);
  const hid_t writing = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  REQUIRE(writing >= 0);
  const std::string message = test::message_of<EnvironmentError>([&] { ShardReader{path}; });
  CAPTURE(message);
  CHECK(test::contains(message, "s.h5: another process has the shard open for writing (errno 11"));
  H5Fclose(writing);
  const File reading = File::open_for_reading(path);
  REQUIRE(::flock(reading.descriptor(), LOCK_SH | LOCK_NB) == 0);  // as HDF5 does for a reader
  CHECK_NOTHROW(ShardReader{path});
  ::chmod(path.c_str(), 0444);
  ::chmod(folder.path().c_str(), 0555);
  CHECK_NOTHROW(ShardReader{path});
  ::chmod(folder.path().c_str(), 0755);
}

TEST_CASE("Positions beyond 2^31 tokens are read where they are", "[shard]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/huge.h5";
  constexpr int64_t kTokens = (int64_t{1} << 31) + 1000;
  const bool chunked = GENERATE(false, true);
  CAPTURE(chunked);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk = 1 << 20;
  if (chunked) H5Pset_chunk(creation, 1, &chunk);
  // The file is sparse: 4 GB long, a few KB on the disk.
  H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
  test::ForeignShard shard;
  shard.dims[0] = kTokens;
  shard.creation = creation;
  const hid_t file = test::open_foreign_shard(path, shard);
  const hid_t dataset = H5Dopen2(file, "tokens", H5P_DEFAULT);
  const hid_t space = H5Dget_space(dataset);
  for (const int64_t first : {(int64_t{1} << 31) - 32, kTokens - 32}) {
    const std::vector<int32_t> marks = test::numbered(first == kTokens - 32 ? 200 : 100, 32);
    const auto start = static_cast<hsize_t>(first);
    const hsize_t count = 32;
    const hid_t memory = H5Screate_simple(1, &count, nullptr);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &count, nullptr);
    H5Dwrite(dataset, H5T_NATIVE_INT32, memory, space, H5P_DEFAULT, marks.data());
    H5Sclose(memory);
  }
  H5Sclose(space);
  H5Dclose(dataset);
  H5Fclose(file);
  H5Pclose(creation);
  const detail::TokenStream stream({path}, "data.train");
  CHECK(stream.num_samples(64) == (kTokens - 1) / 64);
  std::vector<int32_t> window(64);
  stream.read((int64_t{1} << 31) - 32, 64, window.data());
  CHECK(std::vector<int32_t>(window.begin(), window.begin() + 32) == test::numbered(100, 32));
  stream.read(kTokens - 32, 32, window.data());
  CHECK(std::vector<int32_t>(window.begin(), window.begin() + 32) == test::numbered(200, 32));
}

TEST_CASE("Many threads read many shards at once and see the right tokens", "[shard]") {
  const TemporaryDirectory folder;
  std::vector<std::string> paths;
  for (int64_t i = 0; i < 4; ++i) {
    paths.push_back(folder.path() + "/s" + std::to_string(i) + ".h5");
    test::write_numbered_shard(paths.back(), i * 10000, {4000, 6000});
  }
  // One more in chunks.
  const std::vector<int32_t> values = test::numbered(40000, 10000);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk = 512;
  H5Pset_chunk(creation, 1, &chunk);
  test::ForeignShard compressed;
  compressed.values = values.data();
  compressed.memory_type = H5T_NATIVE_INT32;
  compressed.dims[0] = values.size();
  compressed.creation = creation;
  paths.push_back(folder.path() + "/s4.h5");
  test::write_foreign_shard(paths.back(), compressed);
  H5Pclose(creation);
  const detail::TokenStream stream(paths, "data.train");
  const int num_threads = GENERATE(1, 4, 16);
  CAPTURE(num_threads);
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t)
    threads.emplace_back([&, t] {
      std::vector<int32_t> window(65);
      for (uint64_t i = 0; i < 10000 / static_cast<uint64_t>(num_threads); ++i) {
        const auto position = static_cast<int64_t>(mix64(i * 31 + static_cast<uint64_t>(t)) % (50000 - 65));
        stream.read(position, 65, window.data());
        for (int64_t k = 0; k < 65; ++k) wrong += window[static_cast<size_t>(k)] != position + k ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace osdn::data
