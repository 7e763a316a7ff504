// Synthetic retrieval tasks: sentences that name numbers, in a text, and questions for them at its
// end. `eta-train` trains on these forms, and the embedded eta-27m was trained on their wordings.
//
//   single       one number, asked for
//   multi-key    several names with a number each; some of them are asked for
//   multi-value  one name with a first and a second number, both asked for
//   two-hop      a variable that is set to another one, which has a number, as RULER tracks them;
//                two such pairs, one is asked for: the other variable and its number
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/needles/draws.h"
#include "calibration/needles/needle.h"

namespace eta {

class Tokenizer;

enum class RetrievalKind : uint8_t { kSingle, kMultiKey, kMultiValue, kTwoHop };
inline constexpr int kRetrievalKinds = 4;

struct RetrievalQuestion {
  std::string question;  // " ANSWER" follows it
  std::string answer;
};

struct RetrievalTask {
  std::vector<std::string> sentences;  // in the order of the text
  std::vector<RetrievalQuestion> questions;
};

// Draws names and numbers. `most_keys`, at least 2: of the sentences of multi-key.
RetrievalTask MakeRetrievalTask(RetrievalKind kind, int most_keys, Draws& draws);

struct TaskTokens {
  std::vector<Needle> needles;  // the sentences as statements
  std::vector<QuestionTokens> questions;
  size_t count = 0;  // of both
};

// Errors of the tokenizer.
absl::StatusOr<TaskTokens> TokenizeTask(const RetrievalTask& task, const Tokenizer& tokenizer);

// Draws a place in `text` for each, where a sentence has ended (SentenceEnd). They keep their
// order.
std::vector<PlacedNeedle> PlaceNeedles(std::span<const Needle> needles,
                                       std::span<const int32_t> text, const Tokenizer& tokenizer,
                                       Draws& draws);

}  // namespace eta
