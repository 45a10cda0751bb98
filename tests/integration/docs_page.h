// The commands of a Markdown page, and what would escape from being run. The convention
// (docs/contributing.md):
//   ```sh                 is run, from the page's top to its end in one shell
//   ```sh no-run REASON   is shown only; the reason is one of kReasons
//   <!-- sh ... -->       is run and not shown: files that a reader has and a test must make
//   <!-- docs test: slow -->  the page takes longer than a few seconds
#pragma once

#include <algorithm>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace osdn::test {

struct DocsPage {
  std::string name;
  std::string script;                   // all that is run, in order; each block announces itself on stderr
  int num_blocks = 0;                   // shown blocks that are run
  bool slow = false;                    // has the directive
  std::vector<std::string> violations;  // "page:line: what"
  std::vector<std::string> links;       // relative, without anchors
};

/// Needs: the network, root, a GPU, several machines; compiles the tree; does not end by itself.
inline const std::vector<std::string>& docs_reasons() {
  static const std::vector<std::string> reasons = {"network", "root", "gpu", "cluster", "build", "server"};
  return reasons;
}

/// Whether a line of an indented or unlabelled block is something that a reader would type.
inline bool looks_like_a_command(const std::string& line) {
  static const std::regex command(
      R"(^\s*(\$ +)?((sudo|env|nice|time) +)*(osdn +(train|prepare|tokenizer|eval|generate|report|export|import|inspect|config|version|--\w+)\b)"
      R"(|(\./|build/|scripts/)\S+(\s|$))"
      R"(|(cmake|ctest|git|pip3?|python3?|apt-get|apt|bash|curl|wget|tar|tensorboard|sbatch|srun|torchrun|docker|kubectl|xxhsum|sha256sum) +\S))");
  return std::regex_search(line, command);
}

inline DocsPage parse_docs_page(const std::string& name, const std::string& text) {
  static const std::vector<std::string> labels = {"yaml", "json", "text", "cpp", "cuda", "cmake", "python"};
  static const std::regex link(R"(\]\(([^)#\s]+)(#[^)]*)?\))");
  DocsPage page = {.name = name};
  enum class Inside { kNothing, kRun, kShown, kQuoted, kHidden } inside = Inside::kNothing;
  std::istringstream lines(text);
  int number = 0;
  const auto violation = [&](const std::string& what) {
    page.violations.push_back(name + ":" + std::to_string(number) + ": " + what);
  };
  const auto begin_block = [&] {
    page.script += "echo '== " + name + ":" + std::to_string(number) + "' >&2\n";
  };
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const size_t first = line.find_first_not_of(' ');
    const std::string content = first == std::string::npos ? "" : line.substr(first);
    if (inside == Inside::kHidden) {
      if (content == "-->")
        inside = Inside::kNothing;
      else
        page.script += line + "\n";
      continue;
    }
    if (inside != Inside::kNothing) {
      if (content.rfind("```", 0) == 0) {
        inside = Inside::kNothing;
      } else if (inside == Inside::kRun) {
        page.script += content + "\n";
      } else if (inside == Inside::kQuoted && looks_like_a_command(line)) {
        violation("a command in a block that is not run: label it sh");
      }
      continue;
    }
    if (content == "<!-- docs test: slow -->") page.slow = true;
    if (content == "<!-- sh") {
      inside = Inside::kHidden;
      begin_block();
      continue;
    }
    if (content.rfind("```", 0) == 0) {
      std::istringstream words(content.substr(3));
      std::vector<std::string> info;
      for (std::string word; words >> word;) info.push_back(word);
      const std::string label = info.empty() ? "" : info[0];
      const auto known = [](const std::vector<std::string>& list, const std::string& word) {
        return std::find(list.begin(), list.end(), word) != list.end();
      };
      if (label == "sh" && info.size() == 1) {
        inside = Inside::kRun;
        ++page.num_blocks;
        begin_block();
      } else if (label == "sh") {
        inside = Inside::kShown;
        if (info.size() != 3 || info[1] != "no-run" || !known(docs_reasons(), info[2]))
          violation("expected ```sh, or ```sh no-run with one of the known reasons, got " + content);
      } else {
        inside = label == "text" ? Inside::kQuoted : Inside::kShown;
        if (!known(labels, label)) violation("a block without a known label: " + content);
      }
      continue;
    }
    if ((line.rfind("    ", 0) == 0 || line.rfind("\t", 0) == 0) && looks_like_a_command(line))
      violation("an indented command, which is not run: put it into a ```sh block");
    for (std::sregex_iterator at(line.begin(), line.end(), link), end; at != end; ++at) {
      const std::string target = (*at)[1];
      if (target.find("://") == std::string::npos) page.links.push_back(target);
    }
  }
  if (inside != Inside::kNothing) violation("a block without an end");
  return page;
}

}  // namespace osdn::test
