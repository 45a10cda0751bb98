// All parameters in contiguous arenas: fp32 master weights, fp32 gradients, AdamW's two moments, and on CUDA
// a bf16 copy for compute. One kernel updates, one measures, one zeroes all of them; collectives and
// checkpoint shards are ranges. Order: the last group of the model first, as gradients become ready; within a
// group as declared, without gaps, so that one GEMM computes a group; groups start at multiples of 256 bytes.
// Several ranks may share the optimiser's state (ZeRO-1): the arena is cut into buckets, and of each bucket
// rank r updates part r and keeps its moments, and its masters alone where the ops read a compute copy.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::optim {

// P: elements of the arena, padding between groups included. O: those that this process owns.

class ParameterArena {
 public:
  /// Elements that share one weight-decay flag; groups start at multiples of it.
  static constexpr int64_t kBlock = 64;

  struct Slot {
    ParameterSpec spec;
    int64_t offset = 0;  // first element
  };

  /// Elements of the arena: [begin, end).
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };

  /// A range that this process updates.
  struct OwnedRange : Range {
    int64_t moments = 0;  // where it begins in exp_avgs() and exp_avg_sqs()
    int64_t masters = 0;  // where it begins in masters()
    bool common = false;  // every rank updates it alike
  };

  /// Bytes on the device.
  struct Bytes {
    int64_t masters = 0;
    int64_t gradients = 0;
    int64_t moments = 0;  // both
    int64_t compute_copy = 0;
    int64_t sum() const { return masters + gradients + moments + compute_copy; }
    std::string describe() const;  // in GiB
  };

  struct Sharding {
    bool shared = false;     // ranks share the moments; else this process keeps all
    int64_t world_size = 1;  // so many
    int64_t rank = 0;
    int64_t bucket_elements = 0;  // of a bucket, rounded up to what the ranks can share; 0: one bucket
    int64_t last_elements = 0;    // of the buckets that make up the last bucket_elements; 0: as the others
  };

  struct Options {
    at::Device device = at::kCPU;
    at::ScalarType compute = at::kFloat;  // dtype of the weights that the ops see
    bool training = true;                 // gradients and moments exist
    bool decay_all = false;               // weight decay for every parameter
    Sharding sharding = {};
  };

  ParameterArena(const std::vector<ParameterSpec>& specs, const Options& options);

  /// A parameter as the ops take it, with a gradient sink while training. The tensors keep their memory
  /// alive.
  Weight weight(const std::string& name) const;
  WeightSource source() const;

  /// Gives a parameter its value, wherever and as far as this process keeps it; `value`: fp32, its shape, on
  /// any device.
  void set(const Slot& slot, const at::Tensor& value);

  // fp32, the parameter's shape, writable; of an arena whose masters are not shared out
  at::Tensor master(const std::string& name) const;
  at::Tensor gradient(const std::string& name) const;  // fp32
  // fp32; of an arena whose moments are not shared out
  at::Tensor exp_avg(const std::string& name) const;
  at::Tensor exp_avg_sq(const std::string& name) const;

  const at::Tensor& masters() const { return masters_; }          // fp32: [P], or [O] where shared out
  const at::Tensor& gradients() const { return gradients_; }      // [P] fp32
  const at::Tensor& exp_avgs() const { return exp_avgs_; }        // [O] fp32: of the owned ranges, in order
  const at::Tensor& exp_avg_sqs() const { return exp_avg_sqs_; }  // [O] fp32
  const at::Tensor& compute_copy() const {
    return compute_;
  }  // [P] bf16; undefined where masters are used directly
  const at::Tensor& decay_blocks() const { return decay_blocks_; }  // [P / kBlock] uint8, 1: decays

  /// What the ranks share out, in arena order: world_size equal parts each. Behind them, when moments are
  /// shared and the ops read a compute copy, lies what they read from the masters: common to all.
  const std::vector<Range>& buckets() const { return buckets_; }
  /// What this process updates, in arena order: its part of every bucket and what is common, or everything.
  const std::vector<OwnedRange>& owned() const { return owned_; }
  bool is_sharded() const { return sharded_; }
  /// Whether masters() holds the owned ranges alone: sharded, and the ops read a compute copy.
  bool masters_shared_out() const { return sharded_ && compute_.defined(); }
  /// Elements of the whole arena, padding included.
  int64_t size() const { return size_; }
  Bytes bytes() const;

  const std::vector<Slot>& slots() const { return slots_; }  // in arena order
  int64_t num_parameters() const { return num_parameters_; }

  void zero_gradients();
  /// Copies the masters that this process keeps into the compute copy; after any change of them outside the
  /// optimiser.
  void refresh_compute_copy();
  void refresh_compute_copy(const OwnedRange& range);

 private:
  const Slot& slot(const std::string& name) const;
  at::Tensor range(const at::Tensor& arena, const Slot& slot) const;
  at::Tensor range(const at::Tensor& arena, const Slot& slot, int64_t offset) const;
  int64_t add_groups(const std::vector<std::vector<const ParameterSpec*>>& groups, int64_t end);
  void share_out(const Sharding& sharding, int64_t shared_end, int64_t end);

  std::vector<Slot> slots_;
  std::vector<Range> buckets_;
  std::vector<OwnedRange> owned_;
  bool sharded_ = false;
  std::unordered_map<std::string, size_t> index_;
  int64_t num_parameters_ = 0;
  int64_t size_ = 0;
  at::Tensor masters_;
  at::Tensor gradients_;
  at::Tensor exp_avgs_;
  at::Tensor exp_avg_sqs_;
  at::Tensor compute_;
  at::Tensor decay_blocks_;
};

}  // namespace osdn::optim
