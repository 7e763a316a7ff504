// Which ids a word became the last time: most words of a text have been seen before.
//
// It holds short words in a fixed number of places; a new word takes the place of an older one. So
// it does not grow, whatever texts come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace eta {

// Not thread-safe.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 27;
  static constexpr size_t kMaxIds = 8;
  static constexpr size_t kPlaces = 32768;

  // Allocates about two megabytes.
  WordCache() : places_(kPlaces) {}

  // The ids of `word`; empty: not known.
  std::span<const int32_t> Find(std::string_view word) const {
    if (word.size() > kMaxWordBytes) return {};
    const Place* place = &places_[First(word)];
    if (!place->Holds(word)) place = Sibling(place);
    return place->Holds(word) ? std::span(place->ids).first(place->count)
                              : std::span<const int32_t>();
  }
  // Keeps it, if it is short enough.
  void Keep(std::string_view word, std::span<const int32_t> ids);

 private:
  struct Place {
    std::array<int32_t, kMaxIds> ids;
    uint8_t count = 0;
    uint8_t size = 0;  // 0: free
    std::array<char, kMaxWordBytes> word;

    bool Holds(std::string_view wanted) const {
      return std::string_view(word.data(), size) == wanted;
    }
  };

  // A word stands in one of two places beside one another, the one used last first.
  static size_t First(std::string_view word);
  const Place* Sibling(const Place* place) const { return place + 1; }

  std::vector<Place> places_;
};

}  // namespace eta
