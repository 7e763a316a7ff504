#include "engine/tokenizer/word_cache.h"

#include <algorithm>
#include <cstring>

namespace eta {

size_t WordCache::First(std::string_view word) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t hash = word.size();
  const char* bytes = word.data();
  size_t left = word.size();
  for (; left >= 8; left -= 8, bytes += 8) {
    uint64_t eight;
    std::memcpy(&eight, bytes, 8);
    hash = (hash ^ eight) * kMultiplier;
    hash ^= hash >> 29;
  }
  uint64_t rest = 0;
  for (size_t i = 0; i < left; ++i) rest = rest << 8 | static_cast<uint8_t>(bytes[i]);
  hash = (hash ^ rest) * kMultiplier;
  return static_cast<size_t>(hash >> 40) % (kPlaces / 2) * 2;
}

void WordCache::Keep(std::string_view word, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kMaxWordBytes || ids.empty() || ids.size() > kMaxIds) return;
  Place* const place = &places_[First(word)];
  place[1] = place[0];
  std::copy(ids.begin(), ids.end(), place->ids.begin());
  std::copy(word.begin(), word.end(), place->word.begin());
  place->count = static_cast<uint8_t>(ids.size());
  place->size = static_cast<uint8_t>(word.size());
}

}  // namespace eta
