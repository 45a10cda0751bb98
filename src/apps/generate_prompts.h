// The texts that `osdn generate` continues, from the command line and from files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace osdn::apps {

struct Prompt {
  std::string origin;  // for messages: "prompt 2", "questions.jsonl:7"
  std::string text;
};

/// `texts` as they are, then the prompts of `files`: .jsonl (a string, or an object with the text under
/// "prompt", a line) or any other name (one a line, blank lines skipped, CRLF and a byte order mark dropped).
/// Throws UserError naming file and line, also when there is no prompt at all.
std::vector<Prompt> collect_prompts(const std::vector<std::string>& texts,
                                    const std::vector<std::string>& files);

/// Token ids of each prompt, bos in front where the tokenizer has one. Throws UserError naming the prompt
/// that is not UTF-8.
std::vector<std::vector<int32_t>> encode_prompts(const data::Tokenizer& tokenizer,
                                                 const std::vector<Prompt>& prompts);

/// Throws UserError for a stop text that is empty or not UTF-8.
void check_stops(const data::Tokenizer& tokenizer, const std::vector<std::string>& stops);

}  // namespace osdn::apps
