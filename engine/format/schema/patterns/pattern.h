// Regular expressions of schemas: the part of ECMA-262 that is no more than a regular language.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/format/schema/patterns/char_set.h"

namespace eta::schema {

inline constexpr uint32_t kUnbounded = UINT32_MAX;

// How many characters a text has.
struct Lengths {
  uint32_t low = 0;
  uint32_t high = kUnbounded;

  bool operator==(const Lengths&) const = default;
};

// One step of a matcher: a character of a set, or ways to go on, as distances from it.
struct PatternStep {
  int32_t set = -1;  // of the pattern's sets; below 0: no character is taken
  int32_t next = 1;
  int32_t other = 1;
};

class Pattern {
 public:
  // INVALID_ARGUMENT: a sentence that says what is not known, or which limit it is beyond.
  static absl::StatusOr<Pattern> Parse(std::string_view pattern);

  // Whether it is found in `text`, which is UTF-8. Time: steps() for each character.
  bool Matches(std::string_view text) const;

  // The texts in which it is found that are so long, and need no escapes in JSON, as a regular
  // expression of the library that matches them whole. Nullopt: `lengths` cannot be joined with it.
  // Empty: there is no such text.
  std::optional<std::string> WholeText(const Lengths& lengths) const;

  size_t steps() const { return steps_.size(); }

 private:
  friend class PatternParser;

  std::vector<CharSet> sets_;
  std::vector<PatternStep> steps_;  // the last stands behind them: it matches
  std::string whole_;               // all that match and need no escapes; empty: none
  Lengths lengths_;                 // of all that match
  int32_t repeated_ = -1;           // set: it is this set, repeated lengths_ times, and no more
};

}  // namespace eta::schema
