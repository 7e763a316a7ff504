#include "calibration/evaluation/tables/comparisons/arms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "calibration/evaluation/attention/fit_constants.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr size_t kMostTrials = 8;
constexpr double kNearEnough = 0.003;
constexpr int kStride = 16;  // of BigBird in tokens, the paper's

// The parameters between which an arm reads what is wanted, and what it reads too much there.
struct Bracket {
  double low = 0.0;
  double high = 1.0;
  double low_gap = 0.0;
  double high_gap = 0.0;
  int side = 0;  // -1, 1: the end that came nearer last

  void Narrow(double at, double gap) {
    const int nearer = gap < 0.0 ? -1 : 1;
    if (at < low || at > high) return;
    (nearer < 0 ? low : high) = at;
    (nearer < 0 ? low_gap : high_gap) = gap;
    // The Illinois rule: an end that stays weighs half, so that the other does not creep.
    if (side == nearer) (nearer < 0 ? high_gap : low_gap) /= 2.0;
    side = nearer;
  }
  // Where the secant has it, off the ends.
  double Between() const {
    const double share = -low_gap / std::max(high_gap - low_gap, 1e-9);
    return low + (high - low) * std::clamp(share, 0.05, 0.95);
  }
};

// A share as names have it: above 0, and below 1, which would be one key.
double Inside(double p) {
  return std::clamp(p, 1e-4, 0.9999);
}

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

absl::StatusOr<const AttentionScore*> ArmScores::Of(const std::string& name) {
  const auto found = scores_.find(name);
  if (found != scores_.end()) return &found->second;
  ASSIGN_OR_RETURN(AttentionScore score, arms_.Score(name, windows_, prefill_));
  return &scores_.emplace(name, std::move(score)).first->second;
}

absl::StatusOr<MatchedArm> MatchReads(const ArmFamily& family, double wanted, const ArmReads& reads,
                                      std::vector<double>& tried) {
  MatchedArm best;
  Bracket bracket = {.low_gap = -wanted, .high_gap = 1.0 - wanted};
  const size_t most = tried.size() + kMostTrials;
  for (size_t i = 0; i < most; ++i) {
    if (i >= tried.size()) {
      if (i > 0 && std::abs(best.reads - wanted) <= kNearEnough) break;
      tried.push_back(bracket.Between());
    }
    const double at = tried[i];
    const std::string name = family(at);
    ASSIGN_OR_RETURN(const double got, reads(name));
    if (i == 0 || std::abs(got - wanted) < std::abs(best.reads - wanted)) best = {name, at, got};
    bracket.Narrow(at, got - wanted);
  }
  return best;
}

std::vector<RivalFamily> RivalFamilies() {
  // Of H2O half a budget is window, half are heavy hitters: `p` of all keys.
  const auto h2o = [](const char* way, double p) {
    return absl::StrFormat("%s:%.4f:%.4f", way, Inside(p / 2), p / (2 - p));
  };
  return {
      {"Quest", [](double p) { return absl::StrFormat("quest:%.4f:2", p); }},
      {"top-k by the index", [](double p) { return absl::StrFormat("topk:%.4f", p); }},
      {"H2O", [h2o](double p) { return h2o("h2o", p); }},
      {"H2O by block", [h2o](double p) { return h2o("h2o_blocks", p); }},
      {"StreamingLLM", [](double p) { return absl::StrFormat("streaming:%.4f", Inside(p)); }},
      {"window", [](double p) { return absl::StrFormat("window:%.4f", Inside(p)); }},
      {"BigBird", [](double p) { return absl::StrFormat("bigbird:%.4f:%d", Inside(p), kStride); }}};
}

std::vector<std::string> OwnArms(const ModelConfig& config) {
  if (config.gate == Gate::kNone) return {"full", kDefaultArm, "relative:-5.0", "relative:-3.6"};
  return {"full", kDefaultArm, "dynamic+floor=none+z=2",
          "dynamic+floor=none+z=2+block_size=4+pinned_blocks=0"};
}

}  // namespace eta
