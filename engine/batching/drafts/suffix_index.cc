#include "engine/batching/drafts/suffix_index.h"

#include <algorithm>
#include <bit>

#include "engine/base/out_of_memory.h"

namespace eta {
namespace {

constexpr size_t kLeastRoom = 256;

// Of the tokens that end behind `end` of them, for a table of so many places, a power of two.
size_t HashOf(const std::vector<int32_t>& tokens, int32_t end, size_t places) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio
  uint64_t hash = 0;
  for (int32_t i = end - SuffixIndex::kLeastMatch; i < end; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[i])) * kOdd;
    hash ^= hash >> 32;
  }
  return hash & (places - 1);
}

}  // namespace

absl::Status SuffixIndex::Append(std::span<const int32_t> tokens) {
  return CatchOutOfMemory([&] {
    Reserve(tokens_.size() + tokens.size());
    for (const int32_t token : tokens) {
      tokens_.push_back(token);
      earlier_.push_back(0);
      Link(size());
    }
    return absl::OkStatus();
  });
}

void SuffixIndex::Reserve(size_t tokens) {
  if (tokens <= heads_.size()) return;
  const size_t room = std::bit_ceil(std::max(tokens, kLeastRoom));
  std::vector<int32_t> heads(room, 0);
  tokens_.reserve(room);
  earlier_.reserve(room);
  heads_.swap(heads);
  for (int32_t end = 1; end <= size(); ++end) Link(end);
}

void SuffixIndex::Link(int32_t end) {
  if (end < kLeastMatch) return;
  int32_t& head = heads_[HashOf(tokens_, end, heads_.size())];
  earlier_[end - 1] = head;
  head = end;
}

int32_t SuffixIndex::Match(int32_t end) const {
  const int32_t most = std::min(end, kLongestMatch);
  int32_t length = 0;
  while (length < most && tokens_[end - 1 - length] == tokens_[size() - 1 - length]) ++length;
  return length;
}

int32_t SuffixIndex::Propose(std::span<int32_t> draft) const {
  if (size() <= kLeastMatch) return 0;
  int32_t longest = 0;
  int32_t place = 0;
  int32_t end = earlier_.back();
  for (int32_t tried = 0; end != 0 && tried < kMostTried; ++tried, end = earlier_[end - 1]) {
    const int32_t length = Match(end);
    if (length <= longest) continue;
    longest = length;
    place = end;
    if (longest == kLongestMatch) break;
  }
  if (longest < kLeastMatch) return 0;  // other tokens of the same hash
  const size_t known = static_cast<size_t>(size() - place);
  for (size_t i = 0; i < draft.size(); ++i)
    draft[i] = i < known ? tokens_[static_cast<size_t>(place) + i] : draft[i - known];
  return longest;
}

}  // namespace eta
