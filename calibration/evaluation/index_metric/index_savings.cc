#include "calibration/evaluation/index_metric/index_savings.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model_config.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

constexpr double kComparedRows = 256.0;  // whose logits are compared

// A model with another metric, or with none.
class WithMetric final : public TensorSource {
 public:
  WithMetric(const TensorSource& model, const TensorReader* metric)
      : model_(model), metric_(metric) {}

  const std::map<std::string, TensorInfo>& tensors() const override { return model_.tensors(); }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override {
    return model_.Read(name);
  }
  const std::string& config_json() const override { return model_.config_json(); }
  const TensorReader* index_metric() const override { return metric_; }

 private:
  const TensorSource& model_;
  const TensorReader* metric_;
};

absl::StatusOr<IndexCost> CostOf(const TensorSource& model, const ModelConfig& config,
                                 const std::vector<int32_t>& window,
                                 const BackendOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeBackend(options));
  const KvGeometry geometry = MakeKvGeometry(config, DType::kFloat16);
  const auto context = static_cast<int32_t>(window.size());
  ASSIGN_OR_RETURN(
      const std::unique_ptr<SequenceRunner> runner,
      SequenceRunner::Create(model, *backend, {.geometry = geometry, .max_context = context}));
  std::vector<EvaluatedAttention> attentions;
  for (const AttentionMode mode : {AttentionMode::kFull, AttentionMode::kDynamic}) {
    attentions.push_back({ResolveAttention({.mode = mode}, config)});
    attentions.back().geometry = geometry;
  }
  const int32_t prefill = (context - 1) / 2;
  const double share = std::min(1.0, kComparedRows / (context - 1 - prefill));
  ASSIGN_OR_RETURN(const std::vector<AttentionScore> scores,
                   EvaluatePerplexity(OnlyRunner(*runner), std::span(&window, 1), attentions,
                                      {.prefill = prefill, .recall = false, .kl = share}));
  return IndexCost{.union_density = scores.back().union_density,
                   .divergence = scores.back().divergence.value_or(0.0)};
}

}  // namespace

absl::StatusOr<IndexSavings> MeasureIndexSavings(const TensorSource& model, const std::string& path,
                                                 const std::vector<int32_t>& window,
                                                 const BackendOptions& backend) {
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config_json()));
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  IndexSavings savings;
  ASSIGN_OR_RETURN(savings.without, CostOf(WithMetric(model, nullptr), config, window, backend));
  ASSIGN_OR_RETURN(savings.with, CostOf(WithMetric(model, &file), config, window, backend));
  return savings;
}

}  // namespace eta
