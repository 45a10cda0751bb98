#include "optim/parameter_arena.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "tests/support/test.h"

namespace osdn::optim {
namespace {

std::vector<ParameterSpec> small_model() {
  return {{.name = "embedding", .shape = {10, 8}, .group = 0},
          {.name = "q", .shape = {8, 8}, .group = 1},
          {.name = "b", .shape = {2, 8}, .group = 1},
          {.name = "norm", .shape = {8}, .decay = false, .full_precision = true, .group = 2},
          {.name = "head", .shape = {10, 8}, .group = 3}};
}

TEST_CASE("the last group of the model comes first and every group starts at 256 bytes",
          "[parameter_arena]") {
  const ParameterArena arena(small_model(), {});
  std::vector<std::string> names;
  for (const auto& slot : arena.slots()) names.push_back(slot.spec.name);
  CHECK(names == std::vector<std::string>{"head", "norm", "q", "b", "embedding"});
  for (const auto& slot : arena.slots())
    if (slot.spec.name != "b") CHECK(slot.offset % 64 == 0);
  CHECK(arena.num_parameters() == 80 + 64 + 16 + 8 + 80);
}

TEST_CASE("weights of a group join into one tensor over the same memory", "[parameter_arena]") {
  const ParameterArena arena(small_model(), {});
  const Weight joined = join({arena.weight("q"), arena.weight("b")});
  CHECK(joined.value.sizes() == at::IntArrayRef{10, 8});
  joined.value.fill_(3.0);
  CHECK(arena.master("b").eq(3.0f).all().item<bool>());
  joined.sink.fill_(2.0);
  CHECK(arena.gradient("q").eq(2.0f).all().item<bool>());
  CHECK_THROWS_AS(join({arena.weight("b"), arena.weight("q")}), InternalError);
  CHECK_THROWS_AS(join({arena.weight("norm"), arena.weight("head")}), InternalError);
}

TEST_CASE("a change of one range leaves the version of the others alone", "[parameter_arena]") {
  const ParameterArena arena(small_model(), {});
  const at::Tensor q = arena.weight("q").value;
  const auto version = q._version();
  arena.weight("head").value.add_(1.0);
  CHECK(q._version() == version);
}

TEST_CASE("tensors outlive the arena that made them", "[parameter_arena]") {
  at::Tensor kept;
  {
    const ParameterArena arena(small_model(), {});
    arena.master("norm").fill_(5.0);
    kept = arena.weight("norm").value;
  }
  CHECK(kept.eq(5.0f).all().item<bool>());
}

TEST_CASE("full-precision parameters compute in fp32 beside bf16 matrices", "[parameter_arena]") {
  ParameterArena arena(small_model(), {.compute = at::kBFloat16});
  CHECK(arena.weight("norm").value.scalar_type() == at::kFloat);
  CHECK(arena.weight("q").value.scalar_type() == at::kBFloat16);
  arena.master("q").fill_(1.5);
  arena.refresh_compute_copy();
  CHECK(arena.weight("q").value.eq(1.5f).all().item<bool>());
}

TEST_CASE("ranks own every element once, but what is common, and buckets are cut equally",
          "[parameter_arena]") {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const int64_t world : {1, 2, 3, 4}) {
      std::vector<int> owners;
      for (int64_t rank = 0; rank < world; ++rank) {
        const ParameterArena arena(
            small_model(),
            {.compute = compute,
             .sharding = {.shared = world > 1, .world_size = world, .rank = rank, .bucket_elements = 100}});
        owners.resize(static_cast<size_t>(arena.size()));
        const bool shared_out = world > 1 && compute == at::kBFloat16;
        CHECK(arena.masters_shared_out() == shared_out);
        int64_t moments = 0;
        for (const ParameterArena::OwnedRange& range : arena.owned()) {
          CHECK(range.begin % ParameterArena::kBlock == 0);
          CHECK(range.size() % ParameterArena::kBlock == 0);
          CHECK(range.moments == moments);
          CHECK(range.masters == (shared_out ? moments : range.begin));
          moments += range.size();
          for (int64_t i = range.begin; i < range.end; ++i)
            if (!range.common || rank == 0) ++owners[static_cast<size_t>(i)];
        }
        CHECK(moments == arena.exp_avgs().numel());
        CHECK(arena.masters().numel() == (shared_out ? moments : arena.size()));
        // As computed: gradients of everything, 8 bytes of moments and, beside a bf16 copy, 4 of masters for
        // what is owned.
        const int64_t copy = compute == at::kBFloat16 ? 2 * arena.size() : 0;
        CHECK(arena.bytes().sum() == 4 * arena.size() + 8 * moments + copy + 4 * arena.masters().numel());
        for (const ParameterArena::Range& bucket : arena.buckets()) CHECK(bucket.size() % world == 0);
        // What ops read from the masters beside a compute copy is common, and nothing else is.
        const bool has_common = arena.owned().back().common;
        CHECK(has_common == (world > 1 && compute == at::kBFloat16));
        for (const auto& slot : arena.slots())
          if (has_common) CHECK((slot.offset >= arena.owned().back().begin) == slot.spec.full_precision);
      }
      CHECK(std::count(owners.begin(), owners.end(), 1) == static_cast<int64_t>(owners.size()));
    }
  }
}

TEST_CASE("the last of the buckets may be smaller than the others", "[parameter_arena]") {
  const ParameterArena arena(
      {{.name = "matrix", .shape = {10, 100}}},
      {.sharding = {
           .shared = true, .world_size = 2, .rank = 1, .bucket_elements = 300, .last_elements = 100}});
  std::vector<int64_t> sizes;
  for (const ParameterArena::Range& bucket : arena.buckets()) sizes.push_back(bucket.size());
  // Of 1024: whole ones of 384 while more than one is left, then ones of 128.
  CHECK(sizes == std::vector<int64_t>{384, 384, 128, 128});
  CHECK(arena.owned().size() == 4);
  CHECK(arena.owned().back().end == arena.size());
}

TEST_CASE("a parameter's value reaches its masters on whatever ranks own them, and every compute copy",
          "[parameter_arena]") {
  for (const int64_t world : {1, 2, 3}) {
    std::map<std::string, at::Tensor> values;
    at::Tensor gathered;  // [P] from the ranks' masters
    for (int64_t rank = 0; rank < world; ++rank) {
      ParameterArena arena(
          small_model(),
          {.compute = at::kBFloat16,
           .sharding = {.shared = world > 1, .world_size = world, .rank = rank, .bucket_elements = 100}});
      if (rank == 0) gathered = at::full({arena.size()}, std::nan(""));
      for (const auto& slot : arena.slots()) {
        at::Tensor& value = values[slot.spec.name];
        if (rank == 0) value = at::randn(slot.spec.shape);
        arena.set(slot, value);
        const at::Tensor seen = arena.weight(slot.spec.name).value;
        CHECK(at::equal(seen, value.to(seen.scalar_type())));
      }
      for (const ParameterArena::OwnedRange& own : arena.owned())
        gathered.narrow(0, own.begin, own.size()).copy_(arena.masters().narrow(0, own.masters, own.size()));
      const at::Tensor copy = arena.compute_copy().clone();
      arena.refresh_compute_copy();
      CHECK(at::equal(copy, arena.compute_copy()));
      if (world > 1) CHECK_THROWS_AS(arena.master("q"), InternalError);
      if (rank + 1 < world) continue;
      for (const auto& slot : arena.slots())
        CHECK(at::equal(gathered.narrow(0, slot.offset, slot.spec.num_elements()).view(slot.spec.shape),
                        values[slot.spec.name]));
      CHECK_THROWS_AS(arena.set(arena.slots().front(), at::zeros({3})), InternalError);
    }
  }
}

TEST_CASE("an inference arena has neither sinks nor moments", "[parameter_arena]") {
  const ParameterArena arena(small_model(), {.training = false});
  CHECK(!arena.weight("q").sink.defined());
  CHECK_THROWS_AS(arena.exp_avg("q"), InternalError);
  CHECK_THROWS_AS(arena.weight("no such parameter"), InternalError);
}

}  // namespace
}  // namespace osdn::optim
