// Nearest valid names for "did you mean".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace osdn::config::detail {

/// Edits (insert, delete, replace, swap of neighbours) between two words, ignoring case and treating - as _.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate whose initials the word is ("gdn"), else the one with the fewest edits, or empty when none
/// is near (more than a third of the word, at least 2).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// The dotted key that other trainers' name for it stands for ("lr" -> "optimizer.learning_rate"), or empty.
std::string known_synonym(std::string_view word);

}  // namespace osdn::config::detail
