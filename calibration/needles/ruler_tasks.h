// The thirteen task kinds of RULER (Hsieh et al., "RULER: What's the Real Context Size of Your
// Long-Context Language Models?", COLM 2024, section 3 and appendix B), written after the paper's
// definitions: eight needles in a haystack, variable tracking, common words, frequent words, and
// two kinds of questions on documents. Prompts are plain text, with the paper's wording and the
// beginning of the answer; those of vt and cwe have an example in front. They are not RULER's data:
//
//   essays      sentences of the text that is given, from one that is drawn
//   cwe         words of that text, then words that are made up
//   qa_1, qa_2  in place of SQuAD and HotpotQA, which this repository may not bundle and models
//               have read: paragraphs of the text with a made-up fact in each. The question is on
//               one of them (qa_1), or on one that names whom another one tells of (qa_2). All the
//               others have facts of the same kinds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/needles/ruler_text.h"

namespace eta {

class Tokenizer;

inline constexpr int kRulerTasks = 13;
// "niah_single_1", ..., "vt", "cwe", "fwe", "qa_1", "qa_2". REQUIRES: 0 <= task < kRulerTasks.
std::string_view RulerTaskName(int task);

struct RulerQuestion {
  // The text, instruction and question with their documents; the model goes on from its end.
  std::vector<int32_t> prompt;
  std::vector<std::string> answers;
  bool any = false;  // one of the answers is enough (qa); else the share that is found counts
  int32_t max_tokens =
      0;  // of the model's output: RULER's, or what the answers take if that is more
};

// [0, 1]: the share of the answers that `output` holds, letters of either case (RULER's
// string_match_all; with `any` string_match_part: 1 if it holds one). REQUIRES: there are answers.
double ScoreRulerOutput(const RulerQuestion& question, std::string_view output);

// Immutable; thread-safe. The tokenizer must outlive it.
class RulerTasks {
 public:
  // `text`: documents of prose, the haystacks of tasks that want essays and the paragraphs of qa.
  RulerTasks(const std::vector<std::string>& text, const Tokenizer& tokenizer, uint64_t seed);

  // Question `number` of a task, of at most `length` tokens with its output, and as many sentences,
  // lines, words or documents as fit. The same arguments give the same question. InvalidArgument
  // (`length`) where the least form of the task does not fit, and (`text`) for too little text:
  // none is repeated. Errors of the tokenizer.
  absl::StatusOr<RulerQuestion> Make(int task, int32_t length, int32_t number) const;

 private:
  RulerText text_;
  const Tokenizer& tokenizer_;
  uint64_t seed_;
};

}  // namespace eta
