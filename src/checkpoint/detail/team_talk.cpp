#include "checkpoint/detail/team_talk.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace osdn::checkpoint::detail {
namespace team_talk_detail {

std::string place_key(int64_t step) { return fmt::format("checkpoint/{}/place", step); }
std::string share_key(int64_t step, int64_t rank) { return fmt::format("checkpoint/{}/rank_{}", step, rank); }

}  // namespace team_talk_detail

std::string TeamTalk::await(const std::string& key, const std::string& whom) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLongestPause = std::chrono::milliseconds(100);
  const auto start = Clock::now();
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    if (std::optional<std::string> found = team_.board->read(key)) return std::move(*found);
    if (given_up_) throw EnvironmentError("the run ends before {} has done its share", whom);
    if (Clock::now() - start > team_.timeout)
      throw EnvironmentError("{} has not done its share within {} s (distributed.timeout_seconds)", whom,
                             team_.timeout.count());
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

void TeamTalk::announce(int64_t step, const std::string& staged) {
  if (team_.world_size > 1) team_.board->post(team_talk_detail::place_key(step), staged);
}

std::vector<ManifestFile> TeamTalk::collect(int64_t step) {
  std::vector<ManifestFile> files;
  for (int64_t rank = 1; rank < team_.world_size; ++rank) {
    const std::string whom = fmt::format("rank {}", rank);
    const Json share = Json::parse(await(team_talk_detail::share_key(step, rank), whom));
    if (share.contains("failure"))
      throw EnvironmentError("{}: {}", whom, share["failure"].get<std::string>());
    for (const Json& file : share["files"])
      files.push_back({file["name"].get<std::string>(), static_cast<uint64_t>(json_integer(file["size"])),
                       file["digest"].get<std::string>()});
  }
  return files;
}

std::string TeamTalk::await_place(int64_t step) { return await(team_talk_detail::place_key(step), "rank 0"); }

void TeamTalk::report(int64_t step, const std::vector<ManifestFile>& files) {
  Json list = Json::array();
  for (const ManifestFile& file : files)
    list.push_back({{"name", file.name}, {"size", file.size_bytes}, {"digest", file.digest}});
  team_.board->post(team_talk_detail::share_key(step, team_.rank), Json{{"files", list}}.dump());
}

void TeamTalk::report_failure(int64_t step, const std::string& reason) noexcept {
  try {
    const Json share = {{"failure", reason}};
    team_.board->post(team_talk_detail::share_key(step, team_.rank), json_text(share));
  } catch (const std::exception& failure) {
    log::warning("rank 0 could not be told of a failed checkpoint: {}", failure.what());
  }
}

}  // namespace osdn::checkpoint::detail
