// All parameters in contiguous arenas: fp32 master weights, fp32 gradients, AdamW's two moments, and on CUDA
// a bf16 copy for compute. One kernel updates, one measures, one zeroes all of them; collectives and
// checkpoint shards are ranges. Order: the last group of the model first, as gradients become ready; within a
// group as declared, without gaps, so that one GEMM computes a group; groups start at multiples of 256 bytes.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::optim {

// P: elements of the arena, padding between groups included.

class ParameterArena {
 public:
  /// Elements that share one weight-decay flag; groups start at multiples of it.
  static constexpr int64_t kBlock = 64;

  struct Slot {
    ParameterSpec spec;
    int64_t offset = 0;  // first element
  };

  struct Options {
    at::Device device = at::kCPU;
    at::ScalarType compute = at::kFloat;  // dtype of the weights that the ops see
    bool training = true;                 // gradients and moments exist
    bool decay_all = false;               // weight decay for every parameter
  };

  ParameterArena(const std::vector<ParameterSpec>& specs, const Options& options);

  /// A parameter as the ops take it, with a gradient sink while training. The tensors keep their memory
  /// alive.
  Weight weight(const std::string& name) const;
  WeightSource source() const;

  at::Tensor master(const std::string& name) const;      // fp32, the parameter's shape, writable
  at::Tensor gradient(const std::string& name) const;    // fp32
  at::Tensor exp_avg(const std::string& name) const;     // fp32
  at::Tensor exp_avg_sq(const std::string& name) const;  // fp32

  const at::Tensor& masters() const { return masters_; }          // [P] fp32
  const at::Tensor& gradients() const { return gradients_; }      // [P] fp32
  const at::Tensor& exp_avgs() const { return exp_avgs_; }        // [P] fp32
  const at::Tensor& exp_avg_sqs() const { return exp_avg_sqs_; }  // [P] fp32
  const at::Tensor& compute_copy() const {
    return compute_;
  }  // [P] bf16; undefined where masters are used directly
  const at::Tensor& decay_blocks() const { return decay_blocks_; }  // [P / kBlock] uint8, 1: decays

  const std::vector<Slot>& slots() const { return slots_; }  // in arena order
  int64_t num_parameters() const { return num_parameters_; }

  void zero_gradients();
  /// Copies the masters into the compute copy; after any change of the masters outside the optimiser.
  void refresh_compute_copy();

 private:
  const Slot& slot(const std::string& name) const;
  at::Tensor range(const at::Tensor& arena, const Slot& slot) const;

  std::vector<Slot> slots_;
  std::unordered_map<std::string, size_t> index_;
  int64_t num_parameters_ = 0;
  at::Tensor masters_;
  at::Tensor gradients_;
  at::Tensor exp_avgs_;
  at::Tensor exp_avg_sqs_;
  at::Tensor compute_;
  at::Tensor decay_blocks_;
};

}  // namespace osdn::optim
