// How much a proof measures, and the rule by which it asks as many questions as show a loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eta {

// Questions that tell two ways of attending apart by `shown` (a share) of their mean score: the
// 95 % interval of the paired difference is no wider than that to either side. A difference of
// pairs, `parted` of which are answered otherwise and then wholly so, has at most the variance
// `parted`; so n = (1.96 / shown)^2 * parted.
int32_t QuestionsThatShow(double shown, double parted);

inline constexpr double kShownLoss = 0.02;    // of the mean over tasks
inline constexpr double kPartedShare = 0.10;  // of the questions, taken for the number of them

struct ProofPlan {
  std::vector<int32_t> lengths;  // of RULER's questions, ascending
  // Questions of each task and length that are asked first. They decide which tasks full attention
  // can do; the others are asked no more.
  int32_t first_questions = 10;
  // Of the tasks that count, over all of them and all lengths: a loss of 2 points shows, where one
  // question in ten is answered otherwise. 0: the first ones are all.
  int32_t questions = QuestionsThatShow(kShownLoss, kPartedShare);
  int32_t windows = 4;         // of each text
  int32_t kl_rows = 1024;      // of each text, whose divergence is measured
  int32_t prompts = 50;        // of the operator's, evenly spread over the file; 0: all
  int32_t continuation = 512;  // tokens behind a prompt, at most
  std::vector<int32_t> speed_contexts = {128, 512, 2048};  // tokens
  int32_t speed_turns = 21;
  int32_t speed_steps = 32;  // of a turn and a way

  int32_t longest() const { return lengths.back(); }
  // Of each task and length, if so many tasks count.
  int32_t QuestionsOfEach(size_t tasks) const;
};

// RULER's lengths are 4096, 8192, ... and `longest` itself, the last. A quick plan has that one
// alone, and small samples.
ProofPlan MakeProofPlan(int32_t longest, bool quick);

}  // namespace eta
