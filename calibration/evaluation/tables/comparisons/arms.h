// The ways of attending that tables compare, by their names (attention/evaluated_attention.h), and
// the families of rivals that are to read as much as the product does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/runtime/runner_pool.h"
#include "calibration/evaluation/tables/comparisons/match_reads.h"
#include "calibration/evaluation/tables/table_bench.h"

namespace eta {

// Runs ways of attending by name over windows, on one model at a time.
class ArmBench {
 public:
  // Windows of up to `context` predictions; `around` as in Runtime::MakeRunner.
  ArmBench(TableBench& bench, int32_t context, Backend* around = nullptr)
      : bench_(bench), runners_(bench.runtime(), context, around), context_(context) {}

  TableBench& bench() { return bench_; }
  RunnerPool& runners() { return runners_; }
  int32_t context() const { return context_; }

  absl::StatusOr<EvaluatedAttention> Attention(const std::string& name) {
    return bench_.Attention(name, bench_.Geometry());
  }
  // One score per name, in order. The first `prefill` rows of a window are a prompt. `turn` hears
  // whose rows come next.
  absl::StatusOr<std::vector<AttentionScore>> Scores(std::span<const std::string> names,
                                                     std::span<const std::vector<int32_t>> windows,
                                                     int32_t prefill, bool recall = false,
                                                     std::function<void(size_t)> turn = {});
  absl::StatusOr<AttentionScore> Score(const std::string& name,
                                       std::span<const std::vector<int32_t>> windows,
                                       int32_t prefill, bool recall = false);

 private:
  TableBench& bench_;
  RunnerPool runners_;
  int32_t context_;
};

// Scores of arms over the same windows, each measured once: on all of them, or on few, one in
// eight.
class ArmScores {
 public:
  ArmScores(ArmBench& arms, std::span<const std::vector<int32_t>> windows, int32_t prefill);

  // Measures those that were not measured yet, window by window. `turn` hears of every window of
  // every one.
  absl::Status Measure(std::span<const std::string> names, Portion portion,
                       const std::function<void()>& turn = {});
  // REQUIRES: measured. Valid as long as this object.
  const AttentionScore& Of(const std::string& name, Portion portion = Portion::kAll) const {
    return scores_.at({name, portion});
  }

 private:
  ArmBench& arms_;
  std::span<const std::vector<int32_t>> windows_;
  std::vector<std::vector<int32_t>> few_;  // evenly spaced
  int32_t prefill_;
  std::map<std::pair<std::string, Portion>, AttentionScore> scores_;
};

struct RivalFamily {
  const char* label;  // as tables name it
  ArmFamily name;
};
// Quest, top-k by the index, H2O by key and by block, StreamingLLM, sliding window, BigBird.
std::vector<RivalFamily> RivalFamilies();

// What the model does by itself, and the forms of the paper; full attention first.
std::vector<std::string> OwnArms(const ModelConfig& config);
// The product's default.
inline constexpr const char* kDefaultArm = "dynamic";

}  // namespace eta
