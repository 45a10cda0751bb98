// Snapshots whose every element follows from the step, so that a loaded one tells whether it is whole and of
// one step.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "tests/support/test.h"

namespace checkpoint_test {

namespace ck = osdn::checkpoint;

/// Filled by a plain loop: a forked child must not start LibTorch's threads.
inline at::Tensor constant(std::vector<int64_t> shape, float value) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions(at::kFloat));
  float* data = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = value + static_cast<float>(i % 7);
  return tensor;
}

/// Two tensors; `width` sets the size: about 12 * 64 * width bytes in all.
inline ck::Snapshot snapshot(int64_t step, int64_t width = 16) {
  ck::Snapshot made;
  made.step = step;
  const auto base = static_cast<float>(step);
  made.weights = {{"model.embeddings.weight", constant({64, width}, base)},
                  {"model.norm.weight", constant({width}, base + 1)}};
  made.exp_avg = {{"model.embeddings.weight", constant({64, width}, base + 2)},
                  {"model.norm.weight", constant({width}, base + 3)}};
  made.exp_avg_sq = {{"model.embeddings.weight", constant({64, width}, base + 4)},
                     {"model.norm.weight", constant({width}, base + 5)}};
  made.state = osdn::Json::object({{"step", step}, {"tokens", step * 100}, {"learning_rate", 0.1 / 3}});
  return made;
}

inline bool equal(const std::vector<ck::NamedTensor>& a, const std::vector<ck::NamedTensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || a[i].value.sizes() != b[i].value.sizes()) return false;
    if (std::memcmp(a[i].value.const_data_ptr(), b[i].value.const_data_ptr(), a[i].value.nbytes()) != 0)
      return false;
  }
  return true;
}

/// Every element, moment and state value is the one that snapshot(step) has.
inline bool is_snapshot(const ck::Snapshot& loaded, int64_t step, int64_t width = 16) {
  const ck::Snapshot expected = snapshot(step, width);
  return loaded.step == step && equal(loaded.weights, expected.weights) &&
         equal(loaded.exp_avg, expected.exp_avg) && equal(loaded.exp_avg_sq, expected.exp_avg_sq) &&
         loaded.state == expected.state;
}

inline osdn::config::Checkpoint options(int64_t keep_last = 2, int64_t keep_every_steps = 0,
                                        bool asynchronous = false) {
  osdn::config::Checkpoint made;
  made.keep_last = keep_last;
  made.keep_every_steps = keep_every_steps;
  made.asynchronous = asynchronous;
  return made;
}

/// The directory of a freshly written checkpoint.
inline std::string write_one(const std::string& directory, int64_t step) {
  ck::Writer writer(directory, options(0));
  writer.save(snapshot(step));
  return directory + "/" + std::string("step_") + std::string(8 - std::to_string(step).size(), '0') +
         std::to_string(step);
}

inline void write_bytes(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// What the exception says, or a text that no check expects.
template <typename Exception, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Exception& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace checkpoint_test
