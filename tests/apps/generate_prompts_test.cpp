#include "apps/generate_prompts.h"

#include "base/error.h"
#include "base/fs.h"
#include "tests/support/catch.h"

namespace generate_prompts_test {

std::vector<std::string> texts_of(const std::vector<osdn::apps::Prompt>& prompts) {
  std::vector<std::string> texts;
  for (const osdn::apps::Prompt& prompt : prompts) texts.push_back(prompt.text);
  return texts;
}

std::string refusal(const std::string& path) {
  try {
    osdn::apps::collect_prompts({}, {path});
  } catch (const osdn::UserError& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace generate_prompts_test

TEST_CASE("prompts come from the command line, from lines and from JSON lines", "[generate_prompts]") {
  const osdn::TemporaryDirectory folder;
  const std::string lines = folder.path() + "/prompts.txt";
  const std::string json = folder.path() + "/prompts.jsonl";
  osdn::atomic_write(lines, "\xEF\xBB\xBFOne day\r\n\n  indented \nlast");
  osdn::atomic_write(json, "\"plain\"\n\n{\"id\": 3, \"prompt\": \"two\\nlines\"}\n\"\"\n");
  const auto prompts = osdn::apps::collect_prompts({"first", ""}, {lines, json});
  CHECK(generate_prompts_test::texts_of(prompts) ==
        std::vector<std::string>{"first", "", "One day", "  indented ", "last", "plain", "two\nlines", ""});
  CHECK(prompts[1].origin == "prompt 2");
  CHECK(prompts[3].origin == lines + ":3");
  CHECK(prompts[6].origin == json + ":3");
}

TEST_CASE("files without usable prompts are refused by file and line", "[generate_prompts]") {
  using generate_prompts_test::refusal;
  const osdn::TemporaryDirectory folder;
  const std::string json = folder.path() + "/prompts.jsonl";
  const auto refused = [&](const std::string& content, const std::string& part) {
    osdn::atomic_write(json, content);
    INFO(content << ": " << refusal(json));
    CHECK(refusal(json).find(part) != std::string::npos);
  };
  refused("", "the file holds none");
  refused("\n \n", "the file holds none");
  refused("\"a\"\n{\"text\": \"b\"}\n", "prompts.jsonl:2: expected a JSON string or an object with a text");
  refused("\"a\"\n17\n", "prompts.jsonl:2");
  refused("{\"prompt\": 5}\n", "prompts.jsonl:1");
  refused("{\"prompt\": \n", "prompts.jsonl:1");
  CHECK_THROWS_AS(osdn::apps::collect_prompts({}, {}), osdn::UserError);
  CHECK_THROWS_AS(osdn::apps::collect_prompts({}, {folder.path()}), osdn::UserError);
  CHECK_THROWS_AS(osdn::apps::collect_prompts({}, {folder.path() + "/absent"}), osdn::UserError);
}
