// A question of RULER before its length is known: its text grows by units, which are sentences,
// lines, words or documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/needles/draws.h"
#include "calibration/needles/ruler_tasks.h"
#include "calibration/needles/ruler_text.h"

namespace eta {

class Tokenizer;

struct RulerForm {
  std::function<std::string(size_t units)> prompt;  // longer by every unit
  size_t least_units = 1;
  size_t most_units = std::numeric_limits<size_t>::max() / 2;  // that the text has
  std::vector<std::string> answers;
  bool any = false;
  int32_t max_tokens = 0;  // RULER's; more where the answers take more
};

// The question with the most units that fit in `length` tokens. Errors of RulerTasks::Make.
absl::StatusOr<RulerQuestion> FitRulerForm(const std::string& task, const RulerForm& form,
                                           const Tokenizer& tokenizer, int32_t length);

// What a form is drawn from. The text outlives the form.
struct RulerSource {
  const RulerText& text;
  int32_t length = 0;
  Draws question;
  Draws units;
};

enum class RulerHaystack : uint8_t { kNoise, kEssays, kNeedles };

// Needles in a haystack: keys with values.
struct RulerNeedles {
  RulerHaystack haystack = RulerHaystack::kEssays;
  bool uuid_keys = false;    // else words
  bool uuid_values = false;  // else numbers
  size_t keys = 1;
  size_t values = 1;   // of a key, each in a needle of its own
  size_t queries = 1;  // keys that are asked for
};
RulerForm NeedlesForm(const RulerNeedles& needles, RulerSource source);
// Variable tracking: a chain of variables that are set to each other.
RulerForm VariablesForm(RulerSource source);
// The ten words that a list has more often than the others.
RulerForm CommonWordsForm(RulerSource source);
// The three most frequent of coded words, whose frequencies are those of a zeta distribution.
RulerForm FrequentWordsForm(RulerSource source);
// A question on documents. One hop: one of them holds the answer. Two: one of them names whom the
// other one tells of.
RulerForm DocumentsForm(size_t hops, RulerSource source);

}  // namespace eta
