// Which of a set of pieces a text begins with: pieces that are taken whole, wherever they stand.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace eta {

// Immutable after construction; thread-safe. The texts must outlive it.
class PieceMatcher {
 public:
  using Entry = std::pair<std::string_view, int32_t>;  // text, not empty, and id

  struct Match {
    size_t size = 0;  // bytes of the text
    int32_t id = -1;

    explicit operator bool() const { return id >= 0; }
  };

  PieceMatcher() = default;
  // No text twice.
  explicit PieceMatcher(std::vector<Entry> pieces);

  // The longest piece that starts `text`, which is not empty, of those that `may` says yes to;
  // false: none does.
  Match Longest(std::string_view text, absl::FunctionRef<bool(Match)> may) const;
  Match Longest(std::string_view text) const {
    return Longest(text, [](Match) { return true; });
  }

 private:
  std::vector<Entry> pieces_;       // sorted by text
  std::array<bool, 256> starts_{};  // by first byte
};

}  // namespace eta
