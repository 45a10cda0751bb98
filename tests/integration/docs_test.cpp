// Every command of README.md and docs/ runs, page by page, as a reader would type it.
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/fs.h"
#include "tests/integration/docs_page.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn::test {
namespace docs_test_detail {

namespace fs = std::filesystem;

inline std::vector<DocsPage> all_pages() {
  const fs::path root = OSDN_SOURCE_DIR;
  std::vector<std::string> names = {"README.md"};
  for (const char* folder : {"docs", "data"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder))
      if (entry.path().extension() == ".md") names.push_back(fs::relative(entry.path(), root).string());
  std::sort(names.begin(), names.end());
  std::vector<DocsPage> pages;
  pages.reserve(names.size());
  for (const std::string& name : names)
    pages.push_back(parse_docs_page(name, read_file((root / name).string())));
  return pages;
}

/// In a folder that looks like a fresh copy of the repository with `osdn` on the PATH.
inline void run_page(const DocsPage& page) {
  const TemporaryDirectory folder;
  for (const char* part : {"configs", "data", "docs", "scripts"})
    fs::create_symlink(fs::path(OSDN_SOURCE_DIR) / part, fs::path(folder.path()) / part);
  const std::string program = fs::path(OSDN_BINARY).parent_path().string();
  atomic_write(folder.path() + "/.page.sh",
               "set -euo pipefail\nPATH='" + program + "':$PATH\nset -v\n" + page.script);
  const ProcessResult result =
      Process({"/bin/bash", "--noprofile", "--norc", ".page.sh"}, folder.path()).wait();
  INFO(page.name << ": exit code " << result.exit_code << "\n"
                 << result.err.substr(result.err.size() > 6000 ? result.err.size() - 6000 : 0));
  CHECK(result.exit_code == 0);
}

inline int run_pages(bool slow) {
  int num_blocks = 0;
  for (const DocsPage& page : all_pages()) {
    if (page.num_blocks == 0 || page.slow != slow) continue;
    run_page(page);
    num_blocks += page.num_blocks;
  }
  return num_blocks;
}

TEST_CASE("the commands of the pages run", "[docs]") { CHECK(run_pages(false) >= 5); }

TEST_CASE("the commands of the pages that train run", "[docs][slow]") { CHECK(run_pages(true) >= 5); }

TEST_CASE("no command stands outside of a block that runs, and every block has a label", "[docs]") {
  for (const DocsPage& page : all_pages())
    for (const std::string& violation : page.violations) {
      INFO(violation);
      CHECK(page.violations.empty());
    }
}

TEST_CASE("every link leads to a file, and links lead from README to every page", "[docs]") {
  const fs::path root = OSDN_SOURCE_DIR;
  const std::vector<DocsPage> pages = all_pages();
  std::set<std::string> reached = {"README.md"};
  std::vector<std::string> waiting = {"README.md"};
  while (!waiting.empty()) {
    const std::string name = waiting.back();
    waiting.pop_back();
    const auto page =
        std::find_if(pages.begin(), pages.end(), [&](const DocsPage& p) { return p.name == name; });
    if (page == pages.end()) continue;  // a picture, a source file
    for (const std::string& link : page->links) {
      const std::string target = (fs::path(name).parent_path() / link).lexically_normal().string();
      INFO(name << " links to " << link);
      CHECK(fs::exists(root / target));
      // A link to a folder stands for the pages in it.
      std::vector<std::string> targets = {target};
      if (fs::is_directory(root / target))
        for (const auto& entry : fs::directory_iterator(root / target))
          targets.push_back((fs::path(target) / entry.path().filename()).lexically_normal().string());
      for (const std::string& one : targets)
        if (reached.insert(one).second) waiting.push_back(one);
    }
  }
  for (const DocsPage& page : pages) {
    INFO(page.name << " cannot be reached from README.md");
    CHECK(reached.count(page.name) == 1);
  }
}

TEST_CASE("what would escape from being run is found", "[docs]") {
  const auto parse = [](const std::string& text) { return parse_docs_page("page.md", text); };
  CHECK(parse("```sh\nosdn version\n```\n").violations.empty());
  CHECK(parse("```sh\nosdn version\n```\n").num_blocks == 1);
  CHECK(parse("```sh no-run network\npip install x\n```\n").violations.empty());
  CHECK(parse("```sh no-run network\npip install x\n```\n").num_blocks == 0);
  CHECK(parse("<!-- sh\nmkdir corpus\n-->\n").script.find("mkdir corpus") != std::string::npos);
  CHECK(parse("<!-- docs test: slow -->\n").slow);
  CHECK(parse("Text.\n\n    runs/NAME/config.yaml   effective\n").violations.empty());
  for (const char* bad : {"```sh no-run lazy\nosdn version\n```\n", "```sh no-run\nosdn version\n```\n",
                          "```\nls\n```\n", "```bash\nls\n```\n", "```text\n$ osdn train x.yaml\n```\n",
                          "Text.\n\n    osdn train run.yaml\n", "Text.\n\n    cmake --preset dev && x\n",
                          "Text.\n\n    scripts/test.sh\n", "```sh\nosdn version\n"}) {
    INFO(bad);
    CHECK(parse(bad).violations.size() == 1);
  }
}

}  // namespace docs_test_detail
}  // namespace osdn::test
