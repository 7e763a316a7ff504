#include "calibration/evaluation/prove/proof_plan.h"

#include <algorithm>
#include <cmath>

namespace eta {
namespace {

constexpr double kNormal95 = 1.959963984540054;
constexpr int32_t kShortest = 4096;

}  // namespace

int32_t QuestionsThatShow(double shown, double parted) {
  return static_cast<int32_t>(std::ceil(kNormal95 * kNormal95 / (shown * shown) * parted));
}

int32_t ProofPlan::QuestionsOfEach(size_t tasks) const {
  if (questions == 0 || tasks == 0) return first_questions;
  const auto strata = static_cast<int32_t>(tasks * lengths.size());
  return std::max(first_questions, (questions + strata - 1) / strata);
}

ProofPlan MakeProofPlan(int32_t longest, bool quick) {
  ProofPlan plan;
  if (quick) {
    plan.first_questions = 3;
    plan.questions = 0;
    plan.windows = 1;
    plan.kl_rows = 256;
    plan.prompts = 4;
    plan.speed_turns = 5;
    plan.speed_steps = 16;
  } else {
    for (int64_t length = kShortest; length < longest; length *= 2) {
      plan.lengths.push_back(static_cast<int32_t>(length));
    }
  }
  plan.lengths.push_back(longest);
  return plan;
}

}  // namespace eta
