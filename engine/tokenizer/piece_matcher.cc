// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/piece_matcher.h"

#include <algorithm>

namespace eta {

PieceMatcher::PieceMatcher(std::vector<Entry> pieces) : pieces_(std::move(pieces)) {
  std::sort(pieces_.begin(), pieces_.end());
  for (const Entry& piece : pieces_) starts_[static_cast<uint8_t>(piece.first.front())] = true;
}

PieceMatcher::Match PieceMatcher::Longest(std::string_view text,
                                          absl::FunctionRef<bool(Match)> may) const {
  if (!starts_[static_cast<uint8_t>(text.front())]) return {};
  Match longest;
  auto begin = pieces_.begin();
  auto end = pieces_.end();
  for (size_t i = 0; i < text.size(); ++i) {
    // Narrow to the pieces that agree with text[0 .. i]; the shortest of them comes first.
    const auto byte = static_cast<uint8_t>(text[i]);
    begin = std::partition_point(begin, end, [i, byte](const Entry& piece) {
      return piece.first.size() <= i || static_cast<uint8_t>(piece.first[i]) < byte;
    });
    end = std::partition_point(begin, end, [i, byte](const Entry& piece) {
      return static_cast<uint8_t>(piece.first[i]) == byte;
    });
    if (begin == end) break;
    const Match match = {.size = i + 1, .id = begin->second};
    if (begin->first.size() == match.size && may(match)) longest = match;
  }
  return longest;
}

}  // namespace eta
