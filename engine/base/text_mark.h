// A token that has no text of its own, and where it stands in a text.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eta {

struct TextMark {
  size_t at = 0;  // byte that it stands before; the text's size: at its end
  int32_t id = 0;

  bool operator==(const TextMark&) const = default;
};

}  // namespace eta
