#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "apps/inspect_findings.h"
#include "base/error.h"
#include "base/fs.h"
#include "data/shard.h"
#include "data/tokenizer.h"

namespace osdn::apps {
namespace inspect_data_detail {

namespace fs = std::filesystem;

/// `facts` of a shard, or nothing when it is not intact (then `finding` says why).
void read_shard(const std::string& path, Finding* finding) {
  try {
    const data::ShardReader shard(path);
    finding->facts = {
        {"tokens", shard.num_tokens()},           {"documents", shard.num_documents()},
        {"bytes_of_text", shard.text_bytes()},    {"stored_as", shard.stored_type()},
        {"vocabulary", shard.vocab_size()},       {"tokenizer_digest", shard.tokenizer_digest()},
        {"tokens_digest", shard.tokens_digest()},
    };
    shard.verify();
  } catch (const DataError& failure) {
    finding->problems.emplace_back(failure.what());
  }
}

/// What prepare.json promises and the folder does not hold.
void check_summary(const std::string& folder, Finding* finding) {
  const std::string path = folder + "/prepare.json";
  if (!fs::exists(path)) {
    finding->remarks.emplace_back("no prepare.json: the shards were put here by hand or are being made");
    return;
  }
  try {
    const Json summary = read_json(path);
    for (const Json& name : summary.value("files", Json::array()))
      if (name.is_string() && !fs::exists(folder + "/" + name.get<std::string>()))
        finding->problems.push_back(
            fmt::format("{}: names {}, which is not there (run osdn prepare again)", path, name.dump()));
  } catch (const DataError& failure) {
    finding->problems.emplace_back(failure.what());
  } catch (const Json::exception& failure) {
    finding->problems.push_back(fmt::format("{}: {} (run osdn prepare again)", path, failure.what()));
  }
}

}  // namespace inspect_data_detail

void inspect_shard(const std::string& path, std::vector<Finding>* findings) {
  Finding finding = {.path = path, .kind = "token shard"};
  inspect_data_detail::read_shard(path, &finding);
  findings->push_back(std::move(finding));
}

void inspect_tokenizer(const std::string& path, std::vector<Finding>* findings) {
  Finding finding = {.path = path, .kind = "tokenizer"};
  try {
    const data::Tokenizer tokenizer = data::Tokenizer::load(path);
    const auto id = [](int32_t value) { return value < 0 ? Json("none") : Json(value); };
    finding.facts = {{"pieces", tokenizer.vocab_size()}, {"bos", id(tokenizer.bos_id())},
                     {"eos", id(tokenizer.eos_id())},    {"pad", id(tokenizer.pad_id())},
                     {"digest", tokenizer.digest()},     {"any_text_comes_back", tokenizer.lossless()}};
    if (!tokenizer.lossless()) finding.remarks.push_back("texts lose: " + tokenizer.losses());
  } catch (const DataError& failure) {
    finding.problems.emplace_back(failure.what());
  }
  findings->push_back(std::move(finding));
}

void inspect_shard_folder(const std::string& path, std::vector<Finding>* findings) {
  Finding folder = {.path = path, .kind = "folder of shards"};
  const std::vector<std::string> shards = glob_paths(path + "/*.h5");
  int64_t tokens = 0;
  std::set<std::string> digests;
  const size_t first = findings->size();
  for (const std::string& shard : shards) {
    inspect_shard(shard, findings);
    const Json& facts = findings->back().facts;
    if (!facts.contains("tokens")) continue;
    tokens += facts["tokens"].get<int64_t>();
    digests.insert(facts["tokenizer_digest"].get<std::string>());
  }
  folder.facts = {{"shards", shards.size()}, {"tokens", tokens}};
  if (digests.size() > 1)
    folder.problems.push_back(
        fmt::format("{}: its shards were made with {} different tokenizers, so no run can use them together "
                    "(prepare each "
                    "into a folder of its own)",
                    path, digests.size()));
  const std::string tokenizer = path + "/tokenizer.model";
  if (std::filesystem::exists(tokenizer)) {
    inspect_tokenizer(tokenizer, findings);
    const Json& facts = findings->back().facts;
    if (digests.size() == 1 && facts.contains("digest") && facts["digest"] != *digests.begin())
      folder.problems.push_back(fmt::format("{}: has digest {}, its shards were made with {}", tokenizer,
                                            facts["digest"].get<std::string>(), *digests.begin()));
  }
  inspect_data_detail::check_summary(path, &folder);
  findings->insert(findings->begin() + static_cast<std::ptrdiff_t>(first), std::move(folder));
}

}  // namespace osdn::apps
