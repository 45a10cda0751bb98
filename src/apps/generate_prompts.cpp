#include "apps/generate_prompts.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"

namespace osdn::apps {
namespace generate_prompts_detail {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

std::string prompt_of_json(std::string_view line, const std::string& origin) {
  Json json;
  try {
    json = Json::parse(line.begin(), line.end());
  } catch (const Json::exception& failure) {
    throw UserError("{}: expected a JSON string or an object with \"prompt\": {}", origin, failure.what());
  }
  if (json.is_object() && json.contains("prompt")) json = Json(json.at("prompt"));
  if (!json.is_string())
    throw UserError("{}: expected a JSON string or an object with a text under \"prompt\", got {}", origin,
                    json.is_object() ? "an object without it" : json.type_name());
  return json.get<std::string>();
}

void read_prompts(const std::string& path, std::vector<Prompt>* prompts) {
  if (std::filesystem::is_directory(path))
    throw UserError("--prompts: {}: expected a file, got a directory", path);
  const std::string content = read_named_file(path);
  const bool is_json = std::filesystem::path(path).extension() == ".jsonl";
  std::string_view rest = content;
  if (rest.substr(0, kByteOrderMark.size()) == kByteOrderMark) rest.remove_prefix(kByteOrderMark.size());
  const size_t before = prompts->size();
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (is_blank(line)) continue;
    const std::string origin = fmt::format("{}:{}", path, number);
    prompts->push_back({origin, is_json ? prompt_of_json(line, origin) : std::string(line)});
  }
  if (prompts->size() == before)
    throw UserError("--prompts: {}: expected prompts, {} a line; the file holds none", path,
                    is_json ? "a JSON string or object" : "one");
}

std::vector<int32_t> encode(const data::Tokenizer& tokenizer, const Prompt& prompt) {
  try {
    return tokenizer.encode(prompt.text);
  } catch (const UserError& failure) {
    throw UserError("{}: {}", prompt.origin, failure.what());
  }
}

}  // namespace generate_prompts_detail

std::vector<Prompt> collect_prompts(const std::vector<std::string>& texts,
                                    const std::vector<std::string>& files) {
  std::vector<Prompt> prompts;
  for (const std::string& text : texts)
    prompts.push_back({fmt::format("prompt {}", prompts.size() + 1), text});
  for (const std::string& file : files) generate_prompts_detail::read_prompts(file, &prompts);
  if (prompts.empty())
    throw UserError(
        "generate: expected --prompt TEXT (\"\" starts from nothing) or --prompts FILE, got neither");
  return prompts;
}

std::vector<std::vector<int32_t>> encode_prompts(const data::Tokenizer& tokenizer,
                                                 const std::vector<Prompt>& prompts) {
  std::vector<std::vector<int32_t>> all;
  for (const Prompt& prompt : prompts) {
    std::vector<int32_t> ids = generate_prompts_detail::encode(tokenizer, prompt);
    if (tokenizer.bos_id() >= 0) ids.insert(ids.begin(), tokenizer.bos_id());
    all.push_back(std::move(ids));
  }
  return all;
}

void check_stops(const data::Tokenizer& tokenizer, const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) throw UserError("--stop: expected a text, got an empty one");
    generate_prompts_detail::encode(tokenizer, {.origin = "--stop", .text = stop});
  }
}

}  // namespace osdn::apps
