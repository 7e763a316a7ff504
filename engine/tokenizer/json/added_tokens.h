// Tokens of a tokenizer.json that are looked for before a text is cut into words.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/base/byte_range.h"
#include "engine/tokenizer/json/token_automaton.h"

namespace eta {

// One of them, as it stands in the text that it is looked for in.
struct SoughtToken {
  std::string text;
  int32_t id = -1;
  bool control = false;  // counts inside of control ranges alone
  bool plain = false;    // no structure, though a template writes it
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
};

// Immutable; thread-safe.
class AddedTokens {
 public:
  AddedTokens() = default;
  // No text is empty; of tokens with equal texts the first counts.
  explicit AddedTokens(std::vector<SoughtToken> tokens);

  bool empty() const { return tokens_.empty(); }
  bool strips() const { return strips_; }  // some take white space beside them along

  // From left to right, the longest token where several begin: `on_text` hears stretches without
  // tokens, `on_token` their ids. Control tokens, and those in `withheld`, count where they lie in
  // a range whole. One in `withheld` that does not is cut in two, so that it is not made of merges
  // either. Time linear in the text. REQUIRES: sorted ranges that do not touch.
  void Split(std::string_view text, std::span<const ByteRange> control,
             const std::set<int32_t>& withheld, absl::FunctionRef<void(ByteRange)> on_text,
             absl::FunctionRef<void(int32_t)> on_token) const;

  // Adds the ids of those that `text` would be split at, control tokens and plain ones apart.
  void FindIn(std::string_view text, std::set<int32_t>& ids) const;

 private:
  using Matches = std::vector<TokenAutomaton::Match>;

  bool StandsAlone(std::string_view text, ByteRange match) const;

  std::vector<SoughtToken> tokens_;  // those of text first
  size_t first_control_ = 0;         // in tokens_
  TokenAutomaton text_;
  TokenAutomaton control_;
  bool strips_ = false;
};

}  // namespace eta
