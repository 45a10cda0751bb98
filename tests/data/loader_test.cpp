#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "base/fs.h"
#include "data/detail/mixture.h"
#include "data/detail/token_stream.h"
#include "data/sample_order.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace loader_test {

/// Three shards of numbered tokens: 0 .. 1299 in documents of 100, 37, 163, 700 and 300.
class Fixture {
 public:
  Fixture() {
    test::write_numbered_shard(path("train-0.h5"), 0, {100, 37});
    test::write_numbered_shard(path("train-1.h5"), 137, {163, 700});
    test::write_numbered_shard(path("train-2.h5"), 1000, {300});
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::vector<config::WeightedSource> sources() const {
    return {{.path = path("train-*.h5"), .weight = 1.0}};
  }

 private:
  TemporaryDirectory folder_;
};

LoaderOptions options(int64_t length, int64_t global, int64_t micro) {
  LoaderOptions options;
  options.sequence_length = length;
  options.global_batch_sequences = global;
  options.micro_batch_sequences = micro;
  options.seed = 11;
  return options;
}

/// First tokens of the windows of a batch, after checking that each window is T + 1 consecutive tokens.
std::vector<int32_t> heads(const Batch& batch, int64_t length) {
  std::vector<int32_t> first;
  REQUIRE(static_cast<int64_t>(batch.tokens.size()) == batch.num_windows() * (length + 1));
  for (int64_t window = 0; window < batch.num_windows(); ++window) {
    const auto begin = batch.tokens.begin() + window * (length + 1);
    first.push_back(*begin);
    REQUIRE(std::vector<int32_t>(begin, begin + length + 1) == test::numbered(*begin, length + 1));
    REQUIRE(*begin % length == 0);
  }
  return first;
}

/// Heads of the windows of `steps` global batches, as all ranks together see them.
std::vector<int32_t> straight(const std::vector<config::WeightedSource>& sources, LoaderOptions options,
                              int64_t steps) {
  std::vector<std::vector<int32_t>> batches(static_cast<size_t>(steps));
  for (int64_t rank = 0; rank < options.world_size; ++rank) {
    options.rank = rank;
    Loader loader(sources, options);
    const int64_t micro = options.global_batch_sequences / options.world_size / options.micro_batch_sequences;
    for (auto& batch : batches)
      for (int64_t i = 0; i < micro; ++i) {
        const std::vector<int32_t> part = heads(loader.next(), options.sequence_length);
        batch.insert(batch.end(), part.begin(), part.end());
      }
  }
  std::vector<int32_t> all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

}  // namespace loader_test

TEST_CASE("An epoch holds every window once, and the next in another order", "[loader]") {
  const loader_test::Fixture data;
  const int64_t samples = (1300 - 1) / 8;
  Loader loader(data.sources(), loader_test::options(8, 9, 9));
  CHECK(loader.samples_per_epoch() == samples);
  CHECK(loader.num_tokens() == 1300);
  std::vector<int32_t> seen;
  while (static_cast<int64_t>(seen.size()) < 2 * samples) {
    const Batch batch = loader.next();
    CHECK(batch.first_sample == static_cast<int64_t>(seen.size()));
    CHECK(batch.epoch == static_cast<int64_t>(seen.size()) / samples);
    const std::vector<int32_t> part = loader_test::heads(batch, 8);
    seen.insert(seen.end(), part.begin(), part.end());
  }
  const std::vector<int32_t> first(seen.begin(), seen.begin() + samples);
  const std::vector<int32_t> second(seen.begin() + samples, seen.begin() + 2 * samples);
  CHECK(std::set<int32_t>(first.begin(), first.end()).size() == static_cast<size_t>(samples));
  CHECK(std::set<int32_t>(second.begin(), second.end()).size() == static_cast<size_t>(samples));
  CHECK(first != second);
}

TEST_CASE("The end of the data is used as far as windows fit", "[loader]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  // tokens, ranks, sequences a rank, length, global batches an epoch
  const std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>> cases = {
      {94, 2, 1, 5, 9}, {100, 4, 2, 8, 1}, {129, 4, 2, 8, 2}, {5, 1, 1, 5, 0},
      {6, 1, 1, 5, 1},  {10, 2, 1, 5, 0},  {11, 2, 1, 5, 1},  {21, 2, 1, 5, 2}};
  for (const auto& [tokens, ranks, sequences, length, batches] : cases) {
    CAPTURE(tokens, ranks, sequences, length);
    test::write_numbered_shard(path, 0, {tokens});
    LoaderOptions options = loader_test::options(length, ranks * sequences, sequences);
    options.world_size = ranks;
    const std::vector<config::WeightedSource> sources = {{.path = path, .weight = 1.0}};
    if (tokens <= length) {
      const std::string message = test::message_of<UserError>([&] { Loader(sources, options); });
      CHECK(test::contains(message, "data.sequence_length: 5 needs 6 tokens"));
      continue;
    }
    CHECK(Loader(sources, options).samples_per_epoch() / (ranks * sequences) == batches);
    const std::vector<int32_t> seen = loader_test::straight(sources, options, 2 * batches + 1);
    CHECK(*std::max_element(seen.begin(), seen.end()) + length < tokens);
  }
}

TEST_CASE("World size, micro-batch and prefetch do not change the global batches", "[loader]") {
  const loader_test::Fixture data;
  const std::vector<int32_t> reference =
      loader_test::straight(data.sources(), loader_test::options(8, 12, 12), 30);
  for (const int64_t world : {1, 2, 3, 6})
    for (const int64_t micro : {1, 2})
      for (const int64_t prefetch : {1, 7}) {
        CAPTURE(world, micro, prefetch);
        LoaderOptions options = loader_test::options(8, 12, micro);
        options.world_size = world;
        options.prefetch = prefetch;
        CHECK(loader_test::straight(data.sources(), options, 30) == reference);
      }
}

TEST_CASE("Resuming anywhere continues the straight run", "[loader]") {
  const loader_test::Fixture data;
  LoaderOptions options = loader_test::options(8, 6, 3);
  constexpr int64_t kSteps = 60;  // more than two epochs of 162 samples
  const std::vector<int32_t> reference = loader_test::straight(data.sources(), options, kSteps);
  for (const int64_t stop : {1, 13, 26, 27, 28, 54, 59}) {
    CAPTURE(stop);
    int64_t consumed = 0;
    {
      Loader loader(data.sources(), options);
      for (int64_t micro = 0; micro < 2 * stop; ++micro) loader.next();
      // Half a global batch does not count, and neither do batches that were only read ahead.
      CHECK(loader.samples_consumed() == 6 * stop);
      loader.next();
      CHECK(loader.samples_consumed() == 6 * stop);
      consumed = loader.samples_consumed();
    }
    LoaderOptions resumed = options;
    resumed.samples_consumed = consumed;
    const std::vector<int32_t> rest = loader_test::straight(data.sources(), resumed, kSteps - stop);
    CHECK(std::equal(rest.begin(), rest.end(), reference.begin() + 6 * stop, reference.end()));
  }
}

TEST_CASE("What was read ahead does not count, whoever is slower, on any rank", "[loader]") {
  const loader_test::Fixture data;
  constexpr int64_t kStop = 3;
  for (const int64_t prefetch : {1, 4, 16})
    for (const int64_t world : {1, 2})
      for (const bool slow_consumer : {true, false})
        for (int64_t rank = 0; rank < world; ++rank) {
          CAPTURE(prefetch, world, slow_consumer, rank);
          LoaderOptions options = loader_test::options(8, 4, 2);
          options.world_size = world;
          options.rank = rank;
          options.prefetch = prefetch;
          const int64_t micro = 2 / world;
          std::vector<std::vector<int32_t>> straight;  // of this rank, by step
          Loader all(data.sources(), options);
          for (int64_t step = 0; step < 2 * kStop; ++step) {
            straight.emplace_back();
            for (int64_t i = 0; i < micro; ++i)
              for (const int32_t head : loader_test::heads(all.next(), 8)) straight.back().push_back(head);
          }
          Loader first(data.sources(), options);
          for (int64_t i = 0; i < kStop * micro; ++i) {
            // A slow consumer finds everything read ahead, a quick one waits for every batch.
            if (slow_consumer) std::this_thread::sleep_for(std::chrono::milliseconds(2));
            first.next();
          }
          options.samples_consumed = first.samples_consumed();
          CHECK(options.samples_consumed == kStop * 4);
          Loader second(data.sources(), options);
          for (int64_t step = kStop; step < 2 * kStop; ++step) {
            std::vector<int32_t> found;
            for (int64_t i = 0; i < micro; ++i)
              for (const int32_t head : loader_test::heads(second.next(), 8)) found.push_back(head);
            CHECK(found == straight[static_cast<size_t>(step)]);
          }
        }
}

TEST_CASE("Another world size and micro-batch after a resume see the same global batches", "[loader]") {
  const loader_test::Fixture data;
  const auto batches = [&](int64_t world, int64_t micro, int64_t consumed, int64_t global, int64_t steps) {
    LoaderOptions options = loader_test::options(8, global, micro);
    options.world_size = world;
    options.samples_consumed = consumed;
    return loader_test::straight(data.sources(), options, steps);
  };
  const std::vector<int32_t> reference = batches(2, 4, 0, 8, 12);
  const std::vector<int32_t> head = batches(2, 4, 0, 8, 5);
  CHECK(std::equal(head.begin(), head.end(), reference.begin()));
  for (const auto& [world, micro] : {std::pair{4, 2}, {1, 4}, {1, 8}}) {
    CAPTURE(world, micro);
    const std::vector<int32_t> rest = batches(world, micro, 5 * 8, 8, 7);
    CHECK(std::equal(rest.begin(), rest.end(), reference.begin() + 5 * 8, reference.end()));
  }
  // With the batch doubled the next unseen sample comes next.
  const std::vector<int32_t> doubled = batches(2, 4, 5 * 8, 16, 3);
  CHECK(std::equal(doubled.begin(), doubled.end(), reference.begin() + 5 * 8));
}

TEST_CASE("A stop after any step of three epochs continues with the marks that were next", "[loader]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  test::write_numbered_shard(path, 0, {41});  // 10 windows of 4
  const std::vector<config::WeightedSource> sources = {{.path = path, .weight = 1.0}};
  const std::vector<int32_t> marks = loader_test::straight(sources, loader_test::options(4, 2, 2), 15);
  CHECK(std::set<int32_t>(marks.begin(), marks.begin() + 10).size() == 10);
  for (int64_t stop = 1; stop < 15; ++stop) {
    LoaderOptions options = loader_test::options(4, 2, 2);
    options.samples_consumed = 2 * stop;
    const std::vector<int32_t> rest = loader_test::straight(sources, options, 15 - stop);
    CAPTURE(stop);
    CHECK(std::equal(rest.begin(), rest.end(), marks.begin() + 2 * stop, marks.end()));
  }
}

TEST_CASE("Another global batch after a resume goes on with the next unseen sample", "[loader]") {
  const loader_test::Fixture data;
  const std::vector<int32_t> reference =
      loader_test::straight(data.sources(), loader_test::options(8, 6, 6), 20);
  LoaderOptions options = loader_test::options(8, 10, 5);
  options.samples_consumed = 6 * 7;
  const std::vector<int32_t> rest = loader_test::straight(data.sources(), options, 5);
  CHECK(std::equal(rest.begin(), rest.end(), reference.begin() + 42));
}

TEST_CASE("Five restarts see no window twice before all were seen", "[loader]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  test::write_numbered_shard(path, 0, {4001});  // 1,000 windows of 4
  std::set<int32_t> seen;
  LoaderOptions options = loader_test::options(4, 8, 8);
  for (int run = 0; run < 6; ++run) {
    Loader loader({{.path = path, .weight = 1.0}}, options);
    for (int step = 0; step < 20; ++step)
      for (const int32_t head : loader_test::heads(loader.next(), 4)) CHECK(seen.insert(head).second);
    options.samples_consumed = loader.samples_consumed();
  }
  CHECK(seen.size() == 960);
}

TEST_CASE("Sequence offsets mark window starts, and document starts when documents reset", "[loader]") {
  const loader_test::Fixture data;
  const detail::TokenStream stream({data.path("train-*.h5")}, "data.train");
  std::vector<int64_t> starts;
  stream.sequence_starts(0, 1300, std::nullopt, &starts);
  CHECK(starts ==
        std::vector<int64_t>{100, 137, 300, 1000});  // a start at the window's own begin is not repeated
  starts.clear();
  stream.sequence_starts(100, 301, std::nullopt, &starts);
  CHECK(starts == std::vector<int64_t>{137, 300});
  starts.clear();
  stream.sequence_starts(290, 1000, 200, &starts);
  CHECK(starts == std::vector<int64_t>{300, 500, 700, 900});
  starts.clear();
  stream.sequence_starts(550, 1300, 200, &starts);
  CHECK(starts == std::vector<int64_t>{700, 900, 1000, 1200});

  LoaderOptions options = loader_test::options(649, 2, 2);  // two windows: 0 .. 649 and 649 .. 1298
  const auto offsets = [&](const LoaderOptions& chosen) {
    Loader loader(data.sources(), chosen);
    const Batch batch = loader.next();
    return std::make_pair(batch.tokens.front(), batch.offsets);
  };
  const auto [head, reset] = offsets(options);
  const std::vector<int64_t> ordered = {0, 100, 137, 300, 649, 1000, 1298};
  const std::vector<int64_t> swapped = {0, 351, 649, 749, 786, 949, 1298};
  CHECK(reset == (head == 0 ? ordered : swapped));
  options.documents = config::Documents::kCarry;
  CHECK(offsets(options).second == std::vector<int64_t>{0, 649, 1298});
  options.documents = config::Documents::kReset;
  options.max_document_tokens = 500;
  const std::vector<int64_t> cut_ordered = {0, 100, 137, 300, 649, 800, 1000, 1298};
  const std::vector<int64_t> cut_swapped = {0, 151, 351, 649, 749, 786, 949, 1298};
  CHECK(offsets(options).second == (head == 0 ? cut_ordered : cut_swapped));
}

TEST_CASE("Documents of one token each give a sequence each", "[loader]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/s.h5";
  test::write_numbered_shard(path, 0, std::vector<int64_t>(9, 1));
  Loader loader({{.path = path, .weight = 1.0}}, loader_test::options(4, 1, 1));
  CHECK(loader.next().offsets == std::vector<int64_t>{0, 1, 2, 3, 4});
}

TEST_CASE("Weighted sources are mixed by their weights, each in its own order and whole", "[loader]") {
  const TemporaryDirectory folder;
  test::write_numbered_shard(folder.path() + "/a.h5", 0, {401});         // 100 windows of 4
  test::write_numbered_shard(folder.path() + "/b.h5", 100'000, {2001});  // 500 windows
  const std::vector<config::WeightedSource> sources = {{.path = folder.path() + "/a.h5", .weight = 0.3},
                                                       {.path = folder.path() + "/b.h5", .weight = 0.7}};
  LoaderOptions options = loader_test::options(4, 10, 10);
  const std::vector<int32_t> seen = loader_test::straight(sources, options, 70);
  int64_t from_first = 0;
  std::map<int32_t, int> times;
  for (size_t i = 0; i < seen.size(); ++i) {
    from_first += seen[i] < 100'000 ? 1 : 0;
    ++times[seen[i]];
    // Every prefix has its share, to within the one sample that can't be divided.
    CHECK(std::abs(static_cast<double>(from_first) - 0.3 * static_cast<double>(i + 1)) <= 1.01);
  }
  // 210 samples of the first source: each of its 100 windows twice and 10 of them a third time.
  for (const auto& [head, count] : times) {
    if (head < 100'000) {
      CHECK((count == 2 || count == 3));
    } else {
      CHECK(count == 1);
    }
  }
  options.world_size = 2;
  options.micro_batch_sequences = 5;
  CHECK(loader_test::straight(sources, options, 70) == seen);
}

TEST_CASE("Sources without weights are one row of tokens", "[loader]") {
  const loader_test::Fixture data;
  const std::vector<config::WeightedSource> parts = {{.path = data.path("train-0.h5"), .weight = 1.0},
                                                     {.path = data.path("train-[12].h5"), .weight = 1.0}};
  const LoaderOptions options = loader_test::options(8, 6, 6);
  CHECK(loader_test::straight(parts, options, 30) == loader_test::straight(data.sources(), options, 30));
  CHECK(Loader(parts, options).digest() == Loader(data.sources(), options).digest());
}

TEST_CASE("A mixture's quotas follow the weights and every source gets something", "[loader]") {
  const detail::Mixture mixture({1.0, 1e-9, 3.0});
  std::vector<int64_t> count(3, 0);
  for (int64_t sample = 0; sample < 2 * detail::Mixture::kBlock; ++sample) {
    const auto place = mixture(sample);
    REQUIRE(place.index == count[place.source]);
    ++count[place.source];
  }
  CHECK(count[1] == 2);
  CHECK(count[0] + count[1] + count[2] == 2 * detail::Mixture::kBlock);
  CHECK(std::abs(count[0] - detail::Mixture::kBlock / 2) <= 4);
}

TEST_CASE("Wrong loader settings are refused with their numbers", "[loader]") {
  const loader_test::Fixture data;
  const auto refusal = [&](const LoaderOptions& options) {
    return test::message_of<UserError>([&] { Loader(data.sources(), options); });
  };
  LoaderOptions options = loader_test::options(8, 10, 4);
  CHECK(test::contains(refusal(options), "10 sequences do not divide into micro-batches of 4 on 1 ranks"));
  options = loader_test::options(5000, 1, 1);
  std::string message = refusal(options);
  CAPTURE(message);
  CHECK(test::contains(message, "5000 needs 5001 tokens"));
  CHECK(test::contains(message, "holds 1300"));
  options = loader_test::options(8, 1, 1);
  options.vocab_size = 1000;
  CHECK(test::contains(refusal(options), "expected tokens below 1000, the model's vocabulary"));
  options.vocab_size = 0;
  options.max_document_tokens = 10;
  options.documents = config::Documents::kCarry;
  CHECK(test::contains(refusal(options), "data.max_document_tokens: 10 has no effect"));
  options.max_document_tokens.reset();
  message = test::message_of<UserError>([&] { Loader({{.path = "nowhere/*.h5", .weight = 1.0}}, options); });
  CHECK(test::contains(message, "data.train: expected shards, nothing matches nowhere/*.h5 (that is /"));
  CHECK(test::contains(test::message_of<UserError>([&] { Loader({}, options); }), "at least one source"));
  message = test::message_of<UserError>(
      [&] { Loader({{.path = data.path("train-0.h5"), .weight = -1.0}}, options); });
  CHECK(test::contains(message, "expected a positive weight, got -1"));
  test::write_numbered_shard(data.path("train-9.h5"), 0, {10}, 1 << 20, "another");
  message = refusal(options);
  CHECK(test::contains(message, "train-9.h5: made with tokenizer another"));
  CHECK(test::contains(message, "train-0.h5 with tok"));
}

TEST_CASE("A damaged shard stops the loader in next, with file and position", "[loader]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/bad.h5";
  std::vector<int32_t> values = test::numbered(0, 101);
  values[77] = 70000;  // the shard says that its vocabulary has 70,000 pieces
  test::ForeignShard shard;
  shard.stored_type = H5T_STD_U32LE;
  shard.memory_type = H5T_NATIVE_INT32;
  shard.values = values.data();
  shard.dims[0] = values.size();
  test::write_foreign_shard(path, shard);
  Loader loader({{.path = path, .weight = 1.0}}, loader_test::options(4, 1, 1));
  int64_t good = 0;
  const std::string message = test::message_of<DataError>([&] {
    for (;; ++good) loader.next();
  });
  CAPTURE(message);
  CHECK(good < 25);
  CHECK(test::contains(message, "bad.h5: token 77 is 70000"));
  CHECK_THROWS_AS(loader.next(), DataError);
}

TEST_CASE("The data digest follows the tokens and their order", "[loader]") {
  const loader_test::Fixture data;
  const LoaderOptions options = loader_test::options(8, 1, 1);
  const std::string whole = Loader(data.sources(), options).digest();
  CHECK(Loader(data.sources(), options).digest() == whole);
  CHECK(Loader({{.path = data.path("train-0.h5"), .weight = 1.0}}, options).digest() != whole);
  CHECK(Loader(data.sources(), options).tokenizer_digest() == "tok");
  test::write_numbered_shard(data.path("train-1.h5"), 138, {163, 700});  // same name and size, other tokens
  CHECK(Loader(data.sources(), options).digest() != whole);
}

TEST_CASE("A validation set is the first windows in file order", "[loader]") {
  const loader_test::Fixture data;
  const LoaderOptions options = loader_test::options(8, 0, 0);
  const ValidationSet set({data.path("train-*.h5")}, 10, 4, options);
  REQUIRE(set.num_batches() == 3);
  std::vector<int32_t> seen;
  for (int64_t i = 0; i < set.num_batches(); ++i) {
    const std::vector<int32_t> part = loader_test::heads(set.batch(i), 8);
    seen.insert(seen.end(), part.begin(), part.end());
  }
  CHECK(seen == std::vector<int32_t>{0, 8, 16, 24, 32, 40, 48, 56, 64, 72});
  CHECK(set.batch(2).num_windows() == 2);
  CHECK(set.batch(2).offsets == std::vector<int64_t>{0, 8, 16});
  CHECK(set.bytes_per_token() == Approx(4.0));
  // Fewer windows than asked for: those that there are.
  CHECK(ValidationSet({data.path("train-0.h5")}, 1000, 4, options).num_batches() == 5);
  LoaderOptions longer = options;
  longer.sequence_length = 5000;
  const std::string message =
      test::message_of<UserError>([&] { ValidationSet({data.path("train-*.h5")}, 1, 1, longer); });
  CHECK(test::contains(message, "5000 needs 5001 tokens, data.validation holds 1300"));
}

}  // namespace osdn::data
