// Questions with several answers, of which the model is to find the likeliest.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/runtime/runner_pool.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/question_line.h"

namespace eta {

class Tokenizer;

// Reads up to `count` questions, evenly spaced over the file, a .jsonl or .jsonl.xz of lines as in
// question_line.h. InvalidArgument, naming the line.
absl::StatusOr<std::vector<Question>> ReadQuestions(const std::string& path,
                                                    const Tokenizer& tokenizer, int32_t count);

// Tokens of the longest question with a choice that a context has room for; 0: none has.
int32_t LongestAsked(std::span<const Question> questions, int32_t context);

// Whether rows of up to so many keys have no block that this way could leave out.
bool ReadsAll(const EvaluatedAttention& way, int32_t keys);

struct ChoiceScore {
  int64_t questions = 0;
  int64_t right = 0;          // the answer had the largest log-probability in all
  double answer_loss = 0.0;   // nats per token of the right answers
  double head_density = 1.0;  // of the decode rows
  double union_density = 1.0;
};

// Questions whose prompt and choice are longer than the bench's context are left out. All rows but
// the first decode, as generation does; where a way reads all they prefill, which is the same.
absl::StatusOr<ChoiceScore> ScoreChoices(ArmBench& arms, const std::string& attention,
                                         const std::vector<Question>& questions,
                                         const std::function<void(int64_t)>& progress = {});

}  // namespace eta
