#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/detail/ordered_pipeline.h"
#include "data/detail/stage_progress.h"
#include "data/documents.h"
#include "data/prepare.h"
#include "data/train_tokenizer.h"

namespace osdn::data {
namespace train_on_inputs_detail {

struct Stretches {
  std::vector<TrainingStretch> list;
  int64_t input_bytes = 0;
};

}  // namespace train_on_inputs_detail

Tokenizer train_on_inputs(const config::Prepare& settings, const PrepareOptions& options) {
  using train_on_inputs_detail::Stretches;
  TrainingSample sample;
  InputReader reader(settings, find_inputs(settings), options.builtin_seed);
  detail::StageProgress reading(options.progress, "reading for the tokenizer", reader.total_bytes());
  detail::OrderedPipeline<RawDocuments, Stretches> pipeline(
      {.workers = detail::num_workers(settings),
       .limit_bytes = detail::pipeline_bytes(settings),
       .size_bytes = [](const RawDocuments& raw) { return static_cast<int64_t>(raw.bytes.size()); }},
      [&](RawDocuments&& raw) {
        Stretches stretches{.list = {}, .input_bytes = raw.input_bytes};
        const SplitDocuments split = split_documents(raw, settings);
        for (const std::string& text : split.texts) {
          if (is_empty_document(text)) continue;
          std::vector<TrainingStretch> cut = sample.cut(text);
          std::move(cut.begin(), cut.end(), std::back_inserter(stretches.list));
        }
        return stretches;
      });
  pipeline.run([&](RawDocuments* raw) { return reader.next(raw); },
               [&](Stretches&& stretches) {
                 sample.add(std::move(stretches.list));
                 reading.add(stretches.input_bytes);
               });
  const detail::StageProgress training(options.progress, "training the tokenizer", 0);
  return train_tokenizer(sample, settings.tokenizer);
}

}  // namespace osdn::data
