// A YAML document as a plain tree that keeps what strict loading needs and yaml-cpp's own nodes lose: the
// line of every key and value, whether a scalar was quoted, and both places of a key that is given twice.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace osdn::config::detail {

struct NodeEntry;

struct Node {
  enum class Kind { kNull, kScalar, kSequence, kMap };

  Kind kind = Kind::kNull;
  std::string text;     // of a scalar
  bool quoted = false;  // a quoted or block scalar is always text, never a number or null
  std::string origin;   // file name, or "--set"
  int line = 0;         // counted from 1; 0: the origin has no lines
  std::vector<Node> items;
  std::vector<NodeEntry> entries;  // in file order, keys unique

  /// "file:line", or the origin alone.
  std::string where() const;
  /// What a message calls the value: `"8k"`, `nothing`, `a list`, `a section`.
  std::string described() const;
  bool is_plain(std::string_view value) const { return kind == Kind::kScalar && !quoted && text == value; }
  const Node* find(std::string_view key) const;
};

struct NodeEntry {
  std::string key;
  std::string origin;
  int line = 0;  // of the key
  Node value;

  std::string where() const;
};

/// Parses exactly one document. Refuses with UserError (file:line:column): syntax errors, duplicate keys
/// (both lines), merge keys, tags, keys that are not plain words, a second document, an unclosed quote, text
/// that is not UTF-8. A byte order mark and CRLF line ends are accepted. An empty document yields a null
/// node.
Node parse_document(std::string_view text, const std::string& origin);

/// The value of an override, parsed as YAML; `key` names it in messages. The nodes carry no lines.
Node parse_override(std::string_view value, const std::string& key);

/// "child" below "parent": "parent.child", or "child" at the top.
std::string join_key(const std::string& parent, const std::string& child);

}  // namespace osdn::config::detail
