// README.md of an exported directory: where it comes from, how it is read, what the tokenizer promises.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "data/tokenizer.h"

namespace osdn::apps {

struct ExportDescription {
  std::string model_type;  // of config.json
  std::string source;      // checkpoint directory
  int64_t step = 0;
  std::string dtype;
  std::string verification;        // what the comparison of logits found
  std::vector<std::string> notes;  // what the format does not carry
};

/// `tokenizer` may be null: the directory has none.
std::string export_readme(const config::Model& model, const data::Tokenizer* tokenizer,
                          const ExportDescription& description);

}  // namespace osdn::apps
