#include "calibration/evaluation/attention/fit_constants.h"

#include <memory>
#include <utility>

#include "calibration/evaluation/attention/sequence_settings.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// A row in so many is looked at: neighbours meet the same blocks.
constexpr int32_t kRowStride = 61;

absl::Status RunFull(SequenceRunner& runner, EvaluatedAttention attention,
                     std::span<const int32_t> special_ids, std::span<const int32_t> tokens) {
  attention.options.admit_all = true;
  attention.options.relative = false;
  attention.profile = nullptr;
  attention.head_z = false;
  RETURN_IF_ERROR(runner.Begin(SequenceSettingsOf(attention, special_ids, runner.config(),
                                                  static_cast<int64_t>(tokens.size()))));
  return runner.RunPrompt(tokens);
}

}  // namespace

absl::Status FitConstants(const RunnerSource& runners, RivalBackend& rivals,
                          std::span<const int32_t> window, int32_t prefill,
                          std::span<const int32_t> special_ids,
                          std::vector<EvaluatedAttention>& attentions) {
  const auto tokens = window.first(window.size() - 1);
  const auto scored = static_cast<int32_t>(tokens.size()) - prefill;
  for (EvaluatedAttention& attention : attentions) {
    if (!attention.constants) continue;
    ASSIGN_OR_RETURN(SequenceRunner* const runner, runners(attention.geometry));
    const ModelConfig& config = runner->config();
    std::vector<SampledBounds> sample;
    rivals.CollectBounds(&sample, prefill, scored < kRowStride ? 1 : kRowStride);
    const absl::Status run = RunFull(*runner, attention, special_ids, tokens);
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
