// Text to token shards: reads documents, trains a tokenizer or takes one, and writes train-*.h5, valid-*.h5,
// tokenizer.model and prepare.json into one folder. Streaming, on all cores; the result does not depend on
// how many.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/records.h"
#include "data/tokenizer.h"

namespace osdn::data {

struct PrepareProgress {
  // "reading for the tokenizer", "training the tokenizer", "passing over what is done", "encoding"
  std::string stage;
  int64_t bytes_done = 0;    // of the input
  int64_t bytes_before = 0;  // of them: by an interrupted call that this one continues
  int64_t bytes_total = 0;   // 0: unknown
  double seconds = 0;        // since the stage began
};

struct PrepareOptions {
  bool overwrite = false;                                // replace shards that other settings or inputs made
  uint64_t builtin_seed = 1;                             // of the built-in corpus
  std::function<void(const PrepareProgress&)> progress;  // called on the calling thread
};

/// One side of the split.
struct PreparedSplit {
  std::vector<std::string> shards;  // paths
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;  // of text
};

struct PrepareReport {
  PreparedSplit train;
  PreparedSplit validation;
  int64_t dropped_documents = 0;  // without visible text
  SkippedRecords skipped;         // records left out by on_error: skip
  int64_t checked_documents = 0;  // a sample of about one in 64 that was decoded again
  int64_t changed_documents = 0;  // of them: came back different (never with an own tokenizer)
  int64_t vocab_size = 0;
  std::string tokenizer_model;  // path
  double seconds = 0;
  bool already_done = false;  // the folder held exactly this
};

/// Nothing appears under a final name before everything is complete. Interrupted at any moment, the next call
/// for the same with unchanged inputs continues: the trained tokenizer and finished shards stay as they are,
/// input that is done is not encoded again, and the result is the same bytes. Throws UserError for wrong
/// settings or input (file and line), or when the folder holds shards of other settings or inputs;
/// EnvironmentError without space or permission.
PrepareReport prepare(const config::Prepare& settings, const PrepareOptions& options);

/// A tokenizer trained on the documents that prepare would read, on a uniform sample of at most 64 MB of
/// them.
Tokenizer train_on_inputs(const config::Prepare& settings, const PrepareOptions& options);

}  // namespace osdn::data
