// Where a text said before what it says now: drafts of its next tokens come from there (prompt
// lookup decoding, as in "Prompt Lookup Decoding" by Saxena, 2023, with matches as long as they
// go).
//
// Chains of equal hashes link the places where the same kLeastMatch tokens end, newest first. A
// token takes 12 to 24 bytes. Nothing is scanned again: Append is O(1) per token, amortised, and
// Propose compares at most kMostTried * kLongestMatch tokens, whatever the text. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace eta {

class SuffixIndex {
 public:
  static constexpr int32_t kLeastMatch = 3;     // tokens; less is chance
  static constexpr int32_t kLongestMatch = 32;  // what is longer is as good
  static constexpr int32_t kMostTried = 64;     // earlier places, the newest ones

  // The text goes on with these tokens, of any value. OutOfMemory: it is as it was.
  absl::Status Append(std::span<const int32_t> tokens);

  // Fills `draft` with what followed the longest earlier match of the newest tokens, the newest one
  // among equals. Where that reaches the text's end the text repeats itself, and so does the draft.
  // Returns how many tokens match, kLeastMatch to kLongestMatch; 0: no place was found, and `draft`
  // is as it was.
  int32_t Propose(std::span<int32_t> draft) const;

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  void Reserve(size_t tokens);
  // Puts the place behind `end` tokens in front of its chain.
  void Link(int32_t end);
  // How many tokens before `end` are the newest ones, as far as kLongestMatch.
  int32_t Match(int32_t end) const;

  std::vector<int32_t> tokens_;
  std::vector<int32_t>
      earlier_;                 // [tokens]: behind token i, the place before it in its chain; or 0
  std::vector<int32_t> heads_;  // [a power of two]: per hash, the newest place; or 0
};

}  // namespace eta
