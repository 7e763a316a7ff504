// Synthetic retrieval tasks: sentences that name numbers, in a text, and questions for them at its
// end. `eta-train` trains on these forms. eta-27m knows the first two; its card tells of other
// wordings of the last two.
//
//   single       one number, asked for
//   multi-key    several names with a number each; some of them are asked for
//   multi-value  one name with several numbers, all asked for, in the order of the text
//   two-hop      a name whose number is said to be another name's; two such pairs, one is asked for
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calibration/needles/draws.h"

namespace eta {

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

// Draws names and numbers, and for kinds with several numbers how many. `most_keys`, at least 2: of
// sentences.
RetrievalTask MakeRetrievalTask(RetrievalKind kind, int most_keys, Draws& draws);

}  // namespace eta
