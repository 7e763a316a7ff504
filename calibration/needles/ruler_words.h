// The words that RULER's tasks ask for: keys, values and names that nobody has read before.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "calibration/needles/draws.h"

namespace eta {

// "silver-harbor": one of 8192.
std::string DrawKey(Draws& draws);
// Of version 4.
std::string DrawUuid(Draws& draws);
// Letters from `first` on: 'a' or 'A'.
std::string DrawLetters(int count, char first, Draws& draws);

// What `draw` gives, and `words` does not hold.
std::string DrawAnother(const std::vector<std::string>& words,
                        const std::function<std::string()>& draw);

// Different words: those of a text in an order that is drawn, and words that are made up once it
// has no more ("velodar").
class WordDraws {
 public:
  // `text`: ascending; it must outlive this.
  WordDraws(std::span<const std::string> text, Draws draws);

  std::string Next();

 private:
  std::span<const std::string> text_;
  Draws draws_;
  std::vector<uint32_t> left_;  // of the text
  std::set<std::string> made_up_;
};

}  // namespace eta
