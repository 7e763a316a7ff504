// The ways of attending that tables compare, by their names (attention/evaluated_attention.h), and
// parameters for rivals at which they read as much as the product does.
#pragma once

#include <cstdint>
#include <functional>
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

// The name of an arm at a parameter in (0, 1].
using ArmFamily = std::function<std::string(double)>;

struct MatchedArm {
  std::string name;
  double union_density = 0.0;  // on the windows that it was chosen on
};

// The parameter at which an arm's union density on `windows` comes near to `wanted`: within 0.005,
// or as near as six trials bring it. The density must grow with the parameter.
absl::StatusOr<MatchedArm> MatchUnion(ArmBench& arms, const ArmFamily& family, double low,
                                      double high, double wanted,
                                      std::span<const std::vector<int32_t>> windows,
                                      int32_t prefill);

struct RivalFamily {
  const char* label;  // as tables name it
  ArmFamily name;
};
// Quest, top-k by the index, H2O, StreamingLLM, sliding window, BigBird.
std::vector<RivalFamily> RivalFamilies();

// What the model does by itself, and the forms of the paper; full attention first.
std::vector<std::string> OwnArms(const ModelConfig& config);
// The product's default.
inline constexpr const char* kDefaultArm = "dynamic";

// A paired difference of losses, by blocks of tokens. REQUIRES: of the same tokens.
MeanInterval PairedDifference(std::span<const float> losses, std::span<const float> others);

}  // namespace eta
