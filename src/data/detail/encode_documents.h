// From a stretch of input to the tokens of its documents: what a worker of `prepare` does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/detail/ordered_pipeline.h"
#include "data/documents.h"
#include "data/records.h"
#include "data/tokenizer.h"

namespace osdn::data::detail {

/// A stretch of input with the digest of all input up to its end.
struct Stretch {
  RawDocuments raw;
  uint64_t digest = 0;
};

/// The next stretch; `digest` goes on over it. False at the end.
bool read_stretch(InputReader* reader, uint64_t* digest, Stretch* stretch);

struct EncodedDocument {
  std::vector<int32_t> tokens;  // from bos on
  int64_t bytes = 0;            // of text
  bool validation = false;
};

struct EncodedBatch {
  std::vector<EncodedDocument> documents;
  int64_t dropped = 0;  // documents without text
  SkippedRecords skipped;
  int64_t checked = 0;      // documents decoded again
  int64_t changed = 0;      // of them: came back different
  int64_t input_bytes = 0;  // of the files
  int64_t text_bytes = 0;
  uint64_t digest = 0;  // of all input up to the end of the batch
};

/// A document's place in [0, 1) by its text, so that equal documents fall on one side of the split.
double split_place(const std::string& text);

/// Documents below `validation_limit` are for validation. One long document is encoded on all threads of
/// `pool` that have nothing else to do. Throws UserError naming the place.
EncodedBatch encode_documents(Stretch&& stretch, const config::Prepare& settings, const Tokenizer& tokenizer,
                              double validation_limit, WorkerPool* pool);

}  // namespace osdn::data::detail
