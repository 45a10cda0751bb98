// Sequence offsets and the time-major chunk tables.
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/sequences.h"
#include "tests/support/test.h"

namespace osdn::ops::sequences_test {

std::vector<int64_t> values(const at::Tensor& x) {
  const at::Tensor host = x.cpu().contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

TEST_CASE("sequences are ordered by falling length, equal ones by position", "[sequences]") {
  const SequencesPtr sequences = Sequences::make({0, 2, 2, 7, 9}, at::kCPU);
  CHECK(sequences->num_sequences() == 4);
  CHECK(sequences->num_tokens() == 9);
  CHECK(sequences->max_length() == 5);
  CHECK(values(sequences->offsets()) == std::vector<int64_t>({0, 2, 2, 7, 9}));
  CHECK(values(sequences->order()) == std::vector<int64_t>({2, 0, 3, 1}));
  CHECK(values(sequences->inverse_order()) == std::vector<int64_t>({1, 3, 0, 2}));
}

TEST_CASE("a chunk table lists the chunks time-major and pads only the tails", "[sequences]") {
  const SequencesPtr sequences = Sequences::make({0, 2, 2, 7, 9}, at::kCPU);
  const ChunkTable& table = sequences->chunks(2);
  CHECK(table.chunk_size == 2);
  // Step 0: sequences 2, 0, 3; step 1 and 2: sequence 2 alone, whose last chunk has one padding slot (row 9).
  CHECK(values(table.gather) == std::vector<int64_t>({2, 3, 0, 1, 7, 8, 4, 5, 6, 9}));
  CHECK(table.step_begin == std::vector<int64_t>({0, 3, 4, 5}));
  CHECK(values(table.scatter) == std::vector<int64_t>({2, 3, 0, 1, 6, 7, 8, 4, 5}));
  CHECK(&sequences->chunks(2) == &table);
}

TEST_CASE("every token has exactly one slot at any chunk length", "[sequences]") {
  const SequencesPtr sequences = Sequences::make({0, 0, 5, 5, 781, 2048, 2048}, at::kCPU);
  for (const int64_t chunk : {1, 2, 16, 64, 4096}) {
    const ChunkTable& table = sequences->chunks(chunk);
    const std::vector<int64_t> gather = values(table.gather);
    const std::vector<int64_t> scatter = values(table.scatter);
    REQUIRE(static_cast<int64_t>(gather.size()) == table.step_begin.back() * chunk);
    int64_t real = 0;
    for (const int64_t token : gather) real += token < 2048 ? 1 : 0;
    CHECK(real == 2048);
    bool inverse = true;
    for (size_t token = 0; token < scatter.size(); ++token)
      inverse = inverse && gather[static_cast<size_t>(scatter[token])] == static_cast<int64_t>(token);
    CHECK(inverse);
  }
}

TEST_CASE("padded sequences have the same sizes whatever the documents, and take over each other's tensors",
          "[sequences]") {
  const SequencesPtr a = Sequences::padded({0, 70, 71, 150}, 4, at::kCPU);
  const SequencesPtr b = Sequences::padded({0, 2, 130, 150}, 4, at::kCPU);
  CHECK(a->num_sequences() == 4);
  CHECK(values(a->offsets()) == std::vector<int64_t>({0, 70, 71, 150, 150}));
  const ChunkList& list = a->chunk_list(64);
  CHECK(list.num_chunks == 6);
  CHECK(values(list.offsets) == std::vector<int64_t>({0, 2, 3, 5, 5}));
  // The sixth does not exist: it lies behind the end of the last sequence.
  CHECK(values(list.sequences) == std::vector<int64_t>({0, 0, 1, 2, 2, 3}));
  const void* where = list.sequences.data_ptr();
  a->copy_tensors(*b);
  CHECK(values(a->offsets()) == std::vector<int64_t>({0, 2, 130, 150, 150}));
  CHECK(values(a->order()) == values(b->order()));
  CHECK(values(a->inverse_order()) == values(b->inverse_order()));
  CHECK(values(list.offsets) == std::vector<int64_t>({0, 1, 3, 4, 4}));
  CHECK(values(list.sequences) == std::vector<int64_t>({0, 1, 1, 2, 3, 3}));
  CHECK(list.sequences.data_ptr() == where);
  CHECK(Sequences::padded({0, 5}, 1, at::kCPU)->num_sequences() == 1);
  CHECK_THROWS_AS(Sequences::padded({0, 5, 9}, 1, at::kCPU), InternalError);
  CHECK(!a->lengths_read());
  a->host_offsets();
  CHECK(a->lengths_read());
}

TEST_CASE("no sequences and empty sequences have empty tables", "[sequences]") {
  CHECK(Sequences::make({0}, at::kCPU)->chunks(16).gather.numel() == 0);
  const SequencesPtr empty = Sequences::equal(3, 0, at::kCPU);
  CHECK(empty->num_sequences() == 3);
  CHECK(empty->num_tokens() == 0);
  CHECK(empty->chunks(1).step_begin == std::vector<int64_t>({0}));
}

TEST_CASE("offsets that do not ascend from 0 are refused", "[sequences]") {
  CHECK_THROWS_AS(Sequences::make({}, at::kCPU), UserError);
  CHECK_THROWS_AS(Sequences::make({1, 2}, at::kCPU), UserError);
  CHECK_THROWS_AS(Sequences::equal(-1, 4, at::kCPU), UserError);
  std::string message = "accepted";
  try {
    Sequences::make({0, 5, 4}, at::kCPU);
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message.find("got 4 after 5 at position 2") != std::string::npos);
}

}  // namespace osdn::ops::sequences_test
