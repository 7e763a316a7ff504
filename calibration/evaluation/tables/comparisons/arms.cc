#include "calibration/evaluation/tables/comparisons/arms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "calibration/evaluation/attention/fit_constants.h"
#include "calibration/solvers/sample_split.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int kStride = 16;  // of BigBird in tokens, the paper's

// A share as names have it: above 0, and below 1, which would be one key.
double Inside(double p) {
  return std::clamp(p, 1e-4, 0.9999);
}

}  // namespace

absl::StatusOr<std::vector<AttentionScore>> ArmBench::Scores(
    std::span<const std::string> names, std::span<const std::vector<int32_t>> windows,
    int32_t prefill, bool recall, std::function<void(size_t)> turn) {
  std::vector<EvaluatedAttention> ways;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(EvaluatedAttention way, Attention(name));
    ways.push_back(std::move(way));
  }
  RETURN_IF_ERROR(FitConstants(runners_.Source(), bench_.rivals(), windows.front(), prefill,
                               bench_.tokenizer().special_ids(), ways));
  return EvaluatePerplexity(runners_.Source(), windows, ways,
                            {.prefill = prefill,
                             .recall = recall,
                             .special_ids = bench_.tokenizer().special_ids(),
                             .rivals = &bench_.rivals(),
                             .turn = std::move(turn)});
}

absl::StatusOr<AttentionScore> ArmBench::Score(const std::string& name,
                                               std::span<const std::vector<int32_t>> windows,
                                               int32_t prefill, bool recall) {
  ASSIGN_OR_RETURN(std::vector<AttentionScore> scores,
                   Scores(std::span(&name, 1), windows, prefill, recall));
  return std::move(scores.front());
}

ArmScores::ArmScores(ArmBench& arms, std::span<const std::vector<int32_t>> windows, int32_t prefill)
    : arms_(arms),
      windows_(windows),
      few_(KeepSpread(std::vector(windows.begin(), windows.end()), FewOf(windows.size()))),
      prefill_(prefill) {}

absl::Status ArmScores::Measure(std::span<const std::string> names, Portion portion,
                                const std::function<void()>& turn) {
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (scores_.contains({name, portion})) continue;
    if (std::ranges::find(missing, name) == missing.end()) missing.push_back(name);
  }
  if (missing.empty()) return absl::OkStatus();
  const auto windows = portion == Portion::kAll ? windows_ : std::span(std::as_const(few_));
  const auto heard = [&turn](size_t) {
    if (turn) turn();
  };
  ASSIGN_OR_RETURN(std::vector<AttentionScore> scores,
                   arms_.Scores(missing, windows, prefill_, /*recall=*/false, heard));
  for (size_t i = 0; i < missing.size(); ++i) {
    // Where there is one window it is few and all.
    if (few_.size() == windows_.size()) scores_[{missing[i], Portion::kAll}] = scores[i];
    scores_[{missing[i], portion}] = std::move(scores[i]);
  }
  return absl::OkStatus();
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
