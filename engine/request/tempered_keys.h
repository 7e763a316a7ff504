// Which keys of a sequence weigh exp(0): those of control tokens (eta-semantics.md, "Special
// keys"), as SequenceRows::tempered has them. Not thread-safe.
//
// A row's own key is never tempered, so a row may be laid out before its token is known: what the
// token adds here matters from the next row on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace eta {

class TemperedKeys {
 public:
  TemperedKeys() = default;  // tempers none, whatever is appended

  // `special_ids`: of control tokens, ascending; they must outlive this. Room for `most_tokens` is
  // taken here, so that words() stays where it is while a step reads it.
  TemperedKeys(std::span<const int32_t> special_ids, int64_t most_tokens)
      : special_ids_(special_ids) {
    words_.reserve(static_cast<size_t>((most_tokens + kWordBits - 1) / kWordBits));
  }

  void Append(std::span<const int32_t> tokens) {
    if (special_ids_.empty()) return;
    for (const int32_t token : tokens) {
      const int64_t position = num_tokens_++;
      if (!std::binary_search(special_ids_.begin(), special_ids_.end(), token)) continue;
      const auto word = static_cast<size_t>(position / kWordBits);
      if (word >= words_.size()) words_.resize(word + 1);
      words_[word] |= uint64_t{1} << (position % kWordBits);
    }
  }

  // Takes back what was appended beyond `num_tokens`.
  void CutTo(int64_t num_tokens) {
    if (num_tokens >= num_tokens_) return;
    num_tokens_ = num_tokens;
    const auto word = static_cast<size_t>(num_tokens / kWordBits);
    if (word >= words_.size()) return;
    words_.resize(word + 1);
    words_.back() &= (uint64_t{1} << (num_tokens % kWordBits)) - 1;
    while (!words_.empty() && words_.back() == 0) words_.pop_back();
  }

  // Up to the last word that has a bit.
  std::span<const uint64_t> words() const { return words_; }

 private:
  static constexpr int64_t kWordBits = 64;

  std::span<const int32_t> special_ids_;
  int64_t num_tokens_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace eta
