#include "eval/validation.h"

#include "base/fs.h"
#include "data/shard.h"
#include "tests/model/small_model.h"
#include "tests/support/test.h"

namespace osdn::eval {
namespace {

constexpr int64_t kLength = 32;

std::string write_shard(const TemporaryDirectory& folder) {
  const std::string path = folder.path() + "/valid-00000.h5";
  data::ShardWriter writer(
      path, {.tokenizer_digest = "none", .vocab_size = test::kSmallVocab, .source_names = {"test"}});
  at::manual_seed(5);
  for (const int64_t length : {50, 7, 200, 33, 90}) {
    std::vector<int32_t> tokens = {1};
    for (int64_t i = 0; i < length; ++i)
      tokens.push_back(at::randint(0, test::kSmallVocab, {1}).item<int32_t>());
    writer.add_document(tokens, 3 * length);
  }
  writer.finish();
  return path;
}

TEST_CASE("validation is the mean over tokens, whatever the batch, and leaves the model alone",
          "[validation]") {
  const TemporaryDirectory folder;
  const std::string path = write_shard(folder);
  test::SmallModel small(test::small_config(true, true));
  const data::LoaderOptions options{.sequence_length = kLength, .vocab_size = test::kSmallVocab};

  // By hand: every window on its own, losses of all tokens in one float64 sum.
  const data::ValidationSet one_by_one({path}, 11, 1, options);
  REQUIRE(one_by_one.num_batches() == 11);
  double sum = 0;
  for (int64_t i = 0; i < one_by_one.num_batches(); ++i) {
    const DeviceBatch batch = to_device(one_by_one.batch(i), at::kCPU);
    model::ForwardCall call{.sequences = batch.sequences};
    sum += small.model().loss_rows(batch.inputs, batch.targets, call).sum(at::kDouble).item<double>();
  }
  const double expected = sum / (11 * kLength);
  for (const int64_t size : {1, 3, 8, 64}) {
    const metrics::Validation found =
        validate(small.model(), data::ValidationSet({path}, 11, size, options), at::kCPU);
    INFO("batches of " << size);
    CHECK(found.loss == Approx(expected).epsilon(1e-6));
    CHECK(found.perplexity == Approx(std::exp(found.loss)));
  }
  CHECK(small.arena().gradients().abs().max().item<double>() == 0);
}

TEST_CASE("bits per byte divide by the bytes of the text behind the tokens", "[validation]") {
  const TemporaryDirectory folder;
  const test::SmallModel small(test::small_config(false, false));
  const data::ValidationSet set({write_shard(folder)}, 4, 4,
                                {.sequence_length = kLength, .vocab_size = test::kSmallVocab});
  const metrics::Validation found = validate(small.model(), set, at::kCPU);
  CHECK(set.bytes_per_token() == Approx(3.0 * 380 / 385));
  CHECK(found.bits_per_byte == Approx(found.loss / std::log(2.0) / set.bytes_per_token()));
}

TEST_CASE("a batch on the device holds inputs and the targets one further", "[validation]") {
  const TemporaryDirectory folder;
  const data::ValidationSet set({write_shard(folder)}, 2, 2,
                                {.sequence_length = kLength, .vocab_size = test::kSmallVocab});
  const DeviceBatch batch = to_device(set.batch(0), at::kCPU);
  REQUIRE(batch.inputs.numel() == 2 * kLength);
  CHECK(batch.inputs.narrow(0, 1, kLength - 1).equal(batch.targets.narrow(0, 0, kLength - 1)));
  CHECK(batch.targets[kLength - 1].item<int64_t>() == batch.inputs[kLength].item<int64_t>());
  CHECK(batch.sequences->num_tokens() == 2 * kLength);
}

}  // namespace
}  // namespace osdn::eval
