#include "calibration/evaluation/tables/comparisons/arms.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_format.h"
#include "calibration/evaluation/attention/fit_constants.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int kMostTrials = 6;
constexpr double kNearEnough = 0.005;
constexpr int kStride = 16;  // of BigBird, the paper's

}  // namespace

absl::StatusOr<AttentionScore> ArmBench::Score(const std::string& name,
                                               std::span<const std::vector<int32_t>> windows,
                                               int32_t prefill, bool recall) {
  ASSIGN_OR_RETURN(EvaluatedAttention attention, Attention(name));
  std::vector<EvaluatedAttention> one = {std::move(attention)};
  RETURN_IF_ERROR(FitConstants(runners_.Source(), bench_.rivals(), windows.front(), prefill,
                               bench_.tokenizer().special_ids(), one));
  ASSIGN_OR_RETURN(std::vector<AttentionScore> scores,
                   EvaluatePerplexity(runners_.Source(), windows, one,
                                      {.prefill = prefill,
                                       .recall = recall,
                                       .special_ids = bench_.tokenizer().special_ids(),
                                       .rivals = &bench_.rivals()}));
  return std::move(scores.front());
}

absl::StatusOr<MatchedArm> MatchUnion(ArmBench& arms, const ArmFamily& family, double low,
                                      double high, double wanted,
                                      std::span<const std::vector<int32_t>> windows,
                                      int32_t prefill) {
  MatchedArm best;
  double low_union = 0.0;
  double high_union = 1.0;
  for (int trial = 0; trial < kMostTrials; ++trial) {
    // Between a secant, which is fast, and the middle, which cannot stay at one end.
    const double share =
        std::clamp((wanted - low_union) / std::max(high_union - low_union, 1e-9), 0.1, 0.9);
    const double at = low + (high - low) * share;
    const std::string name = family(at);
    ASSIGN_OR_RETURN(const AttentionScore score, arms.Score(name, windows, prefill));
    if (trial == 0 ||
        std::abs(score.union_density - wanted) < std::abs(best.union_density - wanted)) {
      best = {name, score.union_density};
    }
    if (std::abs(score.union_density - wanted) <= kNearEnough) break;
    if (score.union_density < wanted) {
      low = at;
      low_union = score.union_density;
    } else {
      high = at;
      high_union = score.union_density;
    }
  }
  return best;
}

std::vector<RivalFamily> RivalFamilies() {
  return {{"Quest", [](double p) { return absl::StrFormat("quest:%.4f", p); }},
          {"top-k by the index", [](double p) { return absl::StrFormat("topk:%.4f", p); }},
          {"H2O", [](double p) { return absl::StrFormat("h2o:%.4f:%.4f", p / 2.0, p / 2.0); }},
          {"StreamingLLM", [](double p) { return absl::StrFormat("streaming:%.4f", p); }},
          {"window", [](double p) { return absl::StrFormat("window:%.4f", p); }},
          {"BigBird", [](double p) { return absl::StrFormat("bigbird:%.4f:%d", p, kStride); }}};
}

std::vector<std::string> OwnArms(const ModelConfig& config) {
  if (config.gate == Gate::kNone) return {"full", kDefaultArm, "relative:-4.6", "relative:-3.2"};
  return {"full", kDefaultArm, "dynamic+floor=none+z=2",
          "dynamic+floor=none+z=2+block_size=4+pinned_blocks=0"};
}

MeanInterval PairedDifference(std::span<const float> losses, std::span<const float> others) {
  std::vector<float> difference(losses.size());
  std::ranges::transform(losses, others, difference.begin(), std::minus<>());
  return BlockMeanInterval(difference);
}

}  // namespace eta
