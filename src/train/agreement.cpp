#include "train/agreement.h"

#include <optional>

#include "base/error.h"

namespace osdn::train {
Json from_rank_0(dist::Communicator& communicator, const char* what, const std::function<Json()>& compute) {
  if (communicator.world_size() == 1) return compute();
  if (communicator.rank() == 0) {
    Json value;
    try {
      value = compute();
    } catch (const Error& failure) {
      const Json told = {{"failure", failure.what()}, {"code", static_cast<int>(failure.code())}};
      communicator.broadcast_text(json_text(told), what);
      throw;
    }
    communicator.broadcast_text(json_text({{"value", value}}), what);
    return value;
  }
  const Json told = Json::parse(communicator.broadcast_text({}, what));
  if (told.contains("failure"))
    throw Error(static_cast<ExitCode>(told["code"].get<int>()),
                "rank 0: " + told["failure"].get<std::string>());
  return told["value"];
}

void expect_same(dist::Communicator& communicator, const char* what, const std::string& own,
                 const std::function<std::string(const std::string& of_rank_0)>& explain) {
  const std::string first = communicator.broadcast_text(own, what);
  if (communicator.world_size() > 1 && first != own)
    throw UserError("rank {} of {}: {} differs from that of rank 0: {}", communicator.rank(),
                    communicator.world_size(), what, explain(first));
}

}  // namespace osdn::train
