#include "apps/eval_report.h"

#include <sstream>

#include "tests/support/catch.h"

namespace eval_report_test {

using osdn::apps::PerplexityRun;

PerplexityRun example_run() {
  return {.checkpoint = "runs/a/checkpoints/step_00000012",
          .step = 12,
          .computation = "cpu, float32",
          .data = {"a.txt"},
          .text_form = "raw",
          .tokenizer_digest = "abc",
          .tokenizer_lossless = true,
          .num_changed = 0,
          .training_length = 8};
}

osdn::eval::PerplexityResult example_result() {
  return {.totals = {.num_documents = 1,
                     .num_tokens = 14,
                     .num_words = 10,
                     .text_bytes = 60,
                     .negative_log_likelihood = 35},
          .buckets = {{.from = 1, .to = 8, .num_tokens = 8, .negative_log_likelihood = 24},
                      {.from = 9, .to = 16, .num_tokens = 6, .negative_log_likelihood = 11}},
          .documents = {{.name = "a.txt#0",
                         .num_tokens = 14,
                         .num_words = 10,
                         .text_bytes = 60,
                         .negative_log_likelihood = 35}}};
}

}  // namespace eval_report_test

TEST_CASE("the JSON has every perplexity under its own name", "[eval_report]") {
  using eval_report_test::example_result;
  using eval_report_test::example_run;
  const osdn::Json json = osdn::apps::perplexity_json(example_run(), example_result(), true);
  CHECK(json["word_perplexity"].get<double>() == Approx(33.115).epsilon(1e-4));
  CHECK(json["token_perplexity"].get<double>() == Approx(12.182).epsilon(1e-4));
  CHECK(json["byte_perplexity"].get<double>() == Approx(1.7920).epsilon(1e-4));
  CHECK(json["bits_per_byte"].get<double>() == Approx(0.8416).epsilon(1e-4));
  CHECK_FALSE(json.contains("perplexity"));
  CHECK(json["words"] == 10);
  CHECK(json["tokens"] == 14);
  CHECK(json["bytes"] == 60);
  CHECK(json["text_form"] == "raw");
  CHECK(json["window"].is_null());
  CHECK(json["by_position"][1]["loss"].get<double>() == Approx(11.0 / 6));
  CHECK(json["per_document"][0]["name"] == "a.txt#0");
  CHECK_FALSE(osdn::apps::perplexity_json(example_run(), example_result(), false).contains("per_document"));
}

TEST_CASE("the table says what was measured, marks positions beyond training and a lossy tokenizer",
          "[eval_report]") {
  using eval_report_test::example_result;
  using eval_report_test::example_run;
  osdn::apps::PerplexityRun run = example_run();
  osdn::eval::PerplexityResult result = example_result();
  const std::string table = osdn::apps::perplexity_table(run, result);
  for (const char* part : {"step 12", "33.1155", "12.1825", "1.7920", "0.8416", "9 to 16 (beyond training)",
                           "none: whole documents"}) {
    INFO(table << "\n" << part);
    CHECK(table.find(part) != std::string::npos);
  }
  CHECK(table.find("LOSSY") == std::string::npos);
  run.tokenizer_lossless = false;
  run.num_changed = 3;
  run.window = 64;
  run.stride = 16;
  result.totals.num_words.reset();
  const std::string other = osdn::apps::perplexity_table(run, result);
  for (const char* part :
       {"LOSSY", "(3 of these documents do not)", "64 tokens, 16 newly scored", "unknown"}) {
    INFO(other << "\n" << part);
    CHECK(other.find(part) != std::string::npos);
  }
  const osdn::Json json = osdn::apps::perplexity_json(run, result, false);
  CHECK(json["tokenizer"]["lossless"] == false);
  CHECK(json["tokenizer"]["changed_documents"] == 3);
  CHECK(json["word_perplexity"].is_null());
}
