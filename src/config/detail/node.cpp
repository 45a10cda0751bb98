#include "config/detail/node.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace osdn::config::detail {
namespace {

constexpr const char* kOverrideOrigin = "--set";

// Appended as a comment. An unclosed quote, which yaml-cpp 0.7 accepts at the end of a file, swallows it into
// a scalar.
constexpr std::string_view kEndMark = "# end of the configuration, appended by the loader";

// An alias stands for a copy of its anchor: a few lines can ask for billions of nodes.
constexpr int kMaxNodes = 100000;

std::string place(const std::string& origin, int line) {
  // An override has no lines of its own.
  return line > 0 && origin != kOverrideOrigin ? fmt::format("{}:{}", origin, line) : origin;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  /// `num_lines`: of the text, 0 where lines mean nothing.
  TreeBuilder(std::string origin, int num_lines) : origin_(std::move(origin)), num_lines_(num_lines) {}

  Node take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(make(Node::Kind::kNull, mark), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      fail(line_of(mark), "an alias cannot stand inside its own anchor; write the value out");
    add(found->second, 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_tag(mark, tag);
    Node node = make(Node::Kind::kScalar, mark);
    if (value.find(kEndMark) != std::string::npos)
      fail(node.line, "the quote that opens here is never closed");
    node.text = value;
    node.quoted = tag == "!";
    add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    frames_.push_back({make(Node::Kind::kSequence, mark), anchor, {}, 0, false});
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    frames_.push_back({make(Node::Kind::kMap, mark), anchor, {}, 0, false});
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    YAML::anchor_t anchor;
    std::string key;
    int key_line;
    bool has_key;
  };

  // What is missing at the end of the text is placed behind it.
  int line_of(const YAML::Mark& mark) const { return std::min(mark.line + 1, num_lines_); }

  Node make(Node::Kind kind, const YAML::Mark& mark) {
    Node node;
    node.kind = kind;
    node.origin = origin_;
    node.line = line_of(mark);
    return node;
  }

  std::string path() const {
    std::string dotted;
    for (const Frame& frame : frames_) {
      if (frame.node.kind == Node::Kind::kSequence) dotted += fmt::format("[{}]", frame.node.items.size());
      if (frame.has_key) dotted = join_key(dotted, frame.key);
    }
    return dotted;
  }

  [[noreturn]] void fail(int line, const std::string& message) const {
    const std::string key = path();
    throw UserError("{}: {}{}{}", place(origin_, line), key, key.empty() ? "" : ": ", message);
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(line_of(mark), fmt::format("YAML tags are not supported, got \"{}\"", tag));
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    add(std::move(frame.node), frame.anchor);
  }

  static int count_nodes(const Node& node) {
    int count = 1;
    for (const Node& item : node.items) count += count_nodes(item);
    for (const NodeEntry& entry : node.entries) count += count_nodes(entry.value);
    return count;
  }

  void add(Node node, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = node;
    num_nodes_ += node.kind == Node::Kind::kScalar || node.kind == Node::Kind::kNull ? 1 : count_nodes(node);
    if (num_nodes_ > kMaxNodes)
      fail(node.line, fmt::format("more than {} values; is this a configuration?", kMaxNodes));
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& top = frames_.back();
    if (top.node.kind == Node::Kind::kSequence) {
      top.node.items.push_back(std::move(node));
    } else if (!top.has_key) {
      take_key(top, node);
    } else {
      top.node.entries.push_back({top.key, origin_, top.key_line, std::move(node)});
      top.has_key = false;
    }
  }

  void take_key(Frame& top, const Node& node) {
    if (node.kind != Node::Kind::kScalar)
      fail(node.line, fmt::format("expected a key, got {}", node.described()));
    if (node.text == "<<")
      fail(node.line, "merge keys (\"<<\") are not supported; write the inherited keys out");
    for (const NodeEntry& entry : top.node.entries) {
      if (entry.key != node.text) continue;
      const std::string key = join_key(path(), node.text);
      if (node.line == 0) throw UserError("{}: {}: given twice in one value", origin_, key);
      throw UserError("{}: {}: given twice, first on line {}; keep one", place(origin_, node.line), key,
                      entry.line);
    }
    top.key = node.text;
    top.key_line = node.line;
    top.has_key = true;
  }

  std::string origin_;
  int num_lines_;
  int num_nodes_ = 0;
  Node root_;
  std::vector<Frame> frames_;
  std::map<YAML::anchor_t, Node> anchors_;
};

std::string normalised(std::string_view text, const std::string& origin) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  if (text.find('\0') != std::string_view::npos)
    throw UserError("{}: expected YAML text in UTF-8, got binary data or UTF-16", origin);
  if (const size_t position = first_invalid_utf8(text); position != std::string_view::npos) {
    int line = 1;
    for (const char c : text.substr(0, position)) line += c == '\n';
    throw UserError("{}:{}: expected UTF-8, got the byte 0x{:02x}; save the file as UTF-8", origin, line,
                    static_cast<unsigned char>(text[position]));
  }
  std::string result;
  result.reserve(text.size() + kEndMark.size() + 2);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    result += text[i];
  }
  return result;
}

std::string_view line_at(std::string_view text, int line) {
  for (; line > 0; --line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

/// Lines up to the last one that is not blank, at least one.
int count_lines(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\n");
  if (end == std::string_view::npos) return 1;
  const std::string_view used = text.substr(0, end);
  return 1 + static_cast<int>(std::count(used.begin(), used.end(), '\n'));
}

bool is_indented_by_tab(std::string_view line) {
  const size_t end = line.find_first_not_of(" \t");
  return end != std::string_view::npos && line.substr(0, end).find('\t') != std::string_view::npos;
}

[[noreturn]] void fail_syntax(const YAML::Exception& failure, std::string_view text,
                              const std::string& origin, bool has_lines) {
  if (!has_lines) throw UserError("{}: not valid YAML: {} (quote the value?)", origin, failure.msg);
  const int line = failure.mark.line;
  if (line < 0) throw UserError("{}: not valid YAML: {}", origin, failure.msg);
  // yaml-cpp reports a tab as an illegal value, on the line itself or on the one after.
  for (const int candidate : {line, line - 1}) {
    if (candidate >= 0 && is_indented_by_tab(line_at(text, candidate)))
      throw UserError("{}:{}:1: expected spaces, got a tab in the indentation (YAML allows spaces only)",
                      origin, candidate + 1);
  }
  if (const int num_lines = count_lines(text); line >= num_lines)
    throw UserError("{}:{}: not valid YAML: {} before the file ends", origin, num_lines, failure.msg);
  throw UserError("{}:{}:{}: not valid YAML: {}", origin, line + 1, failure.mark.column + 1, failure.msg);
}

// Text after a line "..." ends up in no document that a caller of yaml-cpp sees.
void refuse_text_after_end(std::string_view text, const std::string& origin) {
  bool ended = false;
  for (int line = 0; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    const std::string_view current = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const size_t first = current.find_first_not_of(" \t");
    const bool is_blank = first == std::string_view::npos || current[first] == '#';
    if (ended && !is_blank)
      throw UserError("{}:{}: expected nothing after the line \"...\" that ends the document, got \"{}\"",
                      origin, line + 1, current);
    if (current.substr(0, 3) == "..." && current.find_first_not_of(" \t", 3) == std::string_view::npos)
      ended = true;
  }
}

Node parse_text(const std::string& text, const std::string& origin, bool has_lines) {
  std::istringstream stream(fmt::format("{}\n{}\n", text, kEndMark));
  const int num_lines = has_lines ? count_lines(text) : 0;
  TreeBuilder builder(origin, num_lines);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    Node root = builder.take_root();
    root.origin = origin;  // of an empty text as well
    TreeBuilder rest(origin, num_lines);
    if (parser.HandleNextDocument(rest)) {
      const Node second = rest.take_root();
      throw UserError(
          "{}: expected one YAML document, got a second one (remove the line \"---\" or what follows it)",
          second.where());
    }
    if (has_lines) refuse_text_after_end(text, origin);
    return root;
  } catch (const YAML::Exception& failure) {
    fail_syntax(failure, text, origin, has_lines);
  }
}

}  // namespace

std::string Node::where() const { return place(origin, line); }
std::string NodeEntry::where() const { return place(origin, line); }

std::string Node::described() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kSequence:
      return "a list";
    case Kind::kMap:
      return "a section of keys";
    case Kind::kScalar:
      break;
  }
  constexpr size_t kMaxShown = 80;
  std::string shown = text.size() > kMaxShown ? text.substr(0, kMaxShown) + "..." : text;
  for (char& c : shown)
    if (c == '\n') c = ' ';
  return fmt::format("\"{}\"", shown);
}

const Node* Node::find(std::string_view key) const {
  for (const NodeEntry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

Node parse_document(std::string_view text, const std::string& origin) {
  return parse_text(normalised(text, origin), origin, /*has_lines=*/true);
}

Node parse_override(std::string_view value, const std::string& key) {
  try {
    return parse_text(normalised(value, kOverrideOrigin), kOverrideOrigin, /*has_lines=*/false);
  } catch (const UserError& failure) {
    throw UserError("{} (in the value of {})", failure.what(), key);
  }
}

std::string join_key(const std::string& parent, const std::string& child) {
  return parent.empty() ? child : parent + "." + child;
}

}  // namespace osdn::config::detail
