#include "calibration/needles/ruler_words.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eta {
namespace {

constexpr const char* kKeyAdjectives[] = {
    "silver",  "quiet",  "crimson", "hollow", "golden",   "narrow",  "distant", "frozen",
    "gentle",  "broken", "amber",   "hidden", "ancient",  "bitter",  "brave",   "bright",
    "careful", "clever", "cloudy",  "common", "curious",  "dusty",   "eager",   "early",
    "elegant", "empty",  "faint",   "famous", "fearless", "foreign", "fragile", "friendly",
    "grand",   "greedy", "handy",   "heavy",  "honest",   "humble",  "icy",     "jolly",
    "lively",  "lonely", "lucky",   "modern", "muddy",    "nervous", "noble",   "orange",
    "patient", "plain",  "polite",  "proud",  "purple",   "rapid",   "rusty",   "scarlet",
    "secret",  "shiny",  "silent",  "steady", "stormy",   "sturdy",  "tender",  "vivid"};
constexpr const char* kKeyNouns[] = {
    "harbor",  "meadow",   "lantern",  "bridge",  "orchard", "canyon",  "mirror",  "anchor",
    "garden",  "tunnel",   "feather",  "island",  "apple",   "arrow",   "badger",  "balcony",
    "barrel",  "basket",   "beacon",   "blanket", "bottle",  "branch",  "bucket",  "butter",
    "button",  "cabin",    "camel",    "candle",  "carpet",  "castle",  "cellar",  "chapel",
    "cherry",  "chimney",  "circle",   "clock",   "coffee",  "compass", "copper",  "corner",
    "cottage", "cotton",   "cradle",   "cricket", "crown",   "curtain", "desert",  "diamond",
    "dragon",  "drawer",   "eagle",    "elbow",   "engine",  "falcon",  "fiddle",  "finger",
    "flower",  "forest",   "fountain", "gallery", "glacier", "goblet",  "hammer",  "hazel",
    "helmet",  "hotel",    "insect",   "jacket",  "jungle",  "kettle",  "kitchen", "ladder",
    "lemon",   "library",  "lizard",   "magnet",  "market",  "marble",  "melon",   "minute",
    "monkey",  "mountain", "needle",   "number",  "ocean",   "olive",   "oyster",  "palace",
    "paper",   "parrot",   "pebble",   "pencil",  "pepper",  "piano",   "pillow",  "planet",
    "pocket",  "potato",   "prairie",  "puppet",  "rabbit",  "river",   "rocket",  "saddle",
    "salmon",  "school",   "shadow",   "shovel",  "signal",  "spider",  "spoon",   "squirrel",
    "statue",  "stream",   "summer",   "sweater", "teapot",  "temple",  "theater", "thunder",
    "ticket",  "tiger",    "tower",    "turtle",  "valley",  "violin",  "wagon",   "window"};
static_assert(std::size(kKeyAdjectives) * std::size(kKeyNouns) == 8192);

constexpr std::string_view kConsonants = "bdfgklmnprstvz";
constexpr std::string_view kVowels = "aeiou";
constexpr std::string_view kEnds = "lnrs";

char DrawOf(std::string_view letters, Draws& draws) {
  return letters[draws.Below(letters.size())];
}

std::string MakeUpWord(Draws& draws) {
  std::string word;
  for (int syllable = 0; syllable < 3; ++syllable) {
    word += DrawOf(kConsonants, draws);
    word += DrawOf(kVowels, draws);
  }
  return word + DrawOf(kEnds, draws);
}

}  // namespace

std::string DrawKey(Draws& draws) {
  const char* adjective = kKeyAdjectives[draws.Below(std::size(kKeyAdjectives))];
  return absl::StrCat(adjective, "-", kKeyNouns[draws.Below(std::size(kKeyNouns))]);
}

std::string DrawUuid(Draws& draws) {
  uint64_t words[4];
  for (uint64_t& word : words) word = draws.Below(uint64_t{1} << 32);
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%04x%08x", words[0], words[1] >> 16,
                         words[1] & 0xFFF, 0x8000 | (words[2] & 0x3FFF), words[2] >> 16, words[3]);
}

std::string DrawLetters(int count, char first, Draws& draws) {
  std::string letters;
  for (int i = 0; i < count; ++i)
    letters += static_cast<char>(first + static_cast<int>(draws.Below(26)));
  return letters;
}

std::string DrawAnother(const std::vector<std::string>& words,
                        const std::function<std::string()>& draw) {
  while (true) {
    std::string word = draw();
    if (std::ranges::find(words, word) == words.end()) return word;
  }
}

WordDraws::WordDraws(std::span<const std::string> text, Draws draws)
    : text_(text), draws_(draws), left_(text.size()) {
  std::iota(left_.begin(), left_.end(), uint32_t{0});
}

std::string WordDraws::Next() {
  if (!left_.empty()) {
    std::swap(left_[draws_.Below(left_.size())], left_.back());
    const std::string& word = text_[left_.back()];
    left_.pop_back();
    return word;
  }
  while (true) {
    std::string word = MakeUpWord(draws_);
    if (std::ranges::binary_search(text_, word)) continue;
    if (made_up_.insert(word).second) return word;
  }
}

}  // namespace eta
