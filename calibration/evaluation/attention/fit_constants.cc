#include "calibration/evaluation/attention/fit_constants.h"

#include <memory>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/model/rope_base.h"

namespace eta {
namespace {

// A row in so many is looked at: neighbours meet the same blocks.
constexpr int32_t kRowStride = 61;

absl::Status RunFull(SequenceRunner& runner, AttentionOptions options,
                     std::span<const int32_t> tokens) {
  options.admit_all = true;
  options.relative = false;
  RETURN_IF_ERROR(runner.Begin(
      {.attention = options,
       .rope_theta = RopeTheta(runner.config(), static_cast<int64_t>(tokens.size()))}));
  return runner.RunPrompt(tokens);
}

}  // namespace

absl::Status FitConstants(const RunnerSource& runners, RivalBackend& rivals,
                          std::span<const int32_t> window, int32_t prefill,
                          std::vector<EvaluatedAttention>& attentions) {
  const auto tokens = window.first(window.size() - 1);
  const auto scored = static_cast<int32_t>(tokens.size()) - prefill;
  for (EvaluatedAttention& attention : attentions) {
    if (!attention.constants) continue;
    ASSIGN_OR_RETURN(SequenceRunner* const runner, runners(attention.geometry));
    const ModelConfig& config = runner->config();
    std::vector<SampledBounds> sample;
    rivals.CollectBounds(&sample, prefill, scored < kRowStride ? 1 : kRowStride);
    const absl::Status run = RunFull(*runner, attention.options, tokens);
    rivals.CollectBounds(nullptr);
    RETURN_IF_ERROR(run);
    ASSIGN_OR_RETURN(std::vector<float> thresholds,
                     ConstantsForUnion(sample,
                                       {.num_layers = config.num_layers,
                                        .num_query_heads = config.num_query_heads,
                                        .num_kv_heads = config.num_kv_heads,
                                        .block_size = runner->geometry().block_size},
                                       attention.options, *attention.constants));
    ThresholdProfile profile;
    profile.name = attention.name;
    profile.num_layers = config.num_layers;
    profile.num_query_heads = config.num_query_heads;
    profile.thresholds = std::move(thresholds);
    attention.profile = std::make_shared<const ThresholdProfile>(std::move(profile));
  }
  return absl::OkStatus();
}

}  // namespace eta
