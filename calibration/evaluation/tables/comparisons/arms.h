// The ways of attending that tables compare, by their names (attention/evaluated_attention.h), and
// parameters of rivals at which they read as much as the product does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/runtime/runner_pool.h"
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
  // The first `prefill` rows of a window are a prompt.
  absl::StatusOr<AttentionScore> Score(const std::string& name,
                                       std::span<const std::vector<int32_t>> windows,
                                       int32_t prefill, bool recall = false);

 private:
  TableBench& bench_;
  RunnerPool runners_;
  int32_t context_;
};

// The name of an arm at a parameter in (0, 1).
using ArmFamily = std::function<std::string(double)>;

// Scores of arms over the same windows, each measured once.
class ArmScores {
 public:
  ArmScores(ArmBench& arms, std::span<const std::vector<int32_t>> windows, int32_t prefill)
      : arms_(arms), windows_(windows), prefill_(prefill) {}

  // Valid as long as this object.
  absl::StatusOr<const AttentionScore*> Of(const std::string& name);

 private:
  ArmBench& arms_;
  std::span<const std::vector<int32_t>> windows_;
  int32_t prefill_;
  std::map<std::string, AttentionScore> scores_;
};

struct MatchedArm {
  std::string name;
  double at = 0.0;     // its parameter
  double reads = 0.0;  // what is matched
};

// What an arm of this name reads, by any measure from 0 to about 1.
using ArmReads = std::function<absl::StatusOr<double>(const std::string& name)>;

// The parameter in (0, 1) at which an arm reads `wanted`: within 0.003, or as near as eight trials
// bring it. What it reads must grow with the parameter. Those in `tried` are looked at first; more
// that were tried are added.
absl::StatusOr<MatchedArm> MatchReads(const ArmFamily& family, double wanted, const ArmReads& reads,
                                      std::vector<double>& tried);

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
