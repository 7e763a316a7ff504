#include "training/adaptation/start_thresholds.h"

#include <cstddef>
#include <memory>
#include <span>

#include "engine/base/status_macros.h"
#include "training/backend.h"

namespace eta::training {
namespace {

// What layers see, on the host, as it comes.
class Observations {
 public:
  Observations(TrainingBackend& backend, std::vector<ThresholdFit>& fits, int32_t sequences)
      : backend_(backend), fits_(fits), sequences_(static_cast<size_t>(sequences)) {}

  void Add(int32_t layer, const Tensor& q, const Tensor& k) {
    if (status_.ok()) status_ = Download(q, q_);
    if (status_.ok()) status_ = Download(k, k_);
    if (!status_.ok()) return;
    const size_t queries = q_.size() / sequences_;
    const size_t keys = k_.size() / sequences_;
    for (size_t i = 0; i < sequences_; ++i) {
      fits_[static_cast<size_t>(layer)].Add(std::span(q_).subspan(i * queries, queries),
                                            std::span(k_).subspan(i * keys, keys));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  // As float32, rows one after the other.
  absl::Status Download(const Tensor& tensor, std::vector<float>& values) {
    values.resize(static_cast<size_t>(tensor.rows) * static_cast<size_t>(tensor.cols));
    const size_t bytes = values.size() * sizeof(float);
    ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> buffer, backend_.Allocate(bytes));
    backend_.Convert(tensor,
                     {buffer->data(), DType::kFloat32, tensor.rows, tensor.cols, tensor.cols});
    backend_.Download(values.data(), buffer->data(), bytes);
    return absl::OkStatus();
  }

  TrainingBackend& backend_;
  std::vector<ThresholdFit>& fits_;
  size_t sequences_;
  std::vector<float> q_;  // [B T, HQ d]
  std::vector<float> k_;  // [B T, HKV d]
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::vector<LinearThresholds>> FitStartThresholds(TrainingModel& model,
                                                                 TrainingData& data,
                                                                 const StartOptions& options) {
  const ModelConfig& config = model.spec().config;
  const FitShape shape = {.num_query_heads = config.num_query_heads,
                          .num_kv_heads = config.num_kv_heads,
                          .head_dim = config.head_dim};
  std::vector<ThresholdFit> fits(static_cast<size_t>(config.num_layers),
                                 ThresholdFit(shape, options.rows_per_sequence, options.threads));
  const StepSettings settings = {.gate_strength = 0.0f};
  const int32_t at_a_time = options.sequences_at_a_time;
  for (int32_t first = 0; first < options.sequences; first += at_a_time) {
    ASSIGN_OR_RETURN(const TrainingSequences read,
                     data.Read(static_cast<uint64_t>(first), at_a_time));
    const size_t length = read.answers.size() / static_cast<size_t>(at_a_time);
    std::vector<int32_t> tokens;
    for (size_t row = 0; row < static_cast<size_t>(at_a_time); ++row) {
      const auto begin = read.tokens.begin() + static_cast<std::ptrdiff_t>(row * (length + 1));
      tokens.insert(tokens.end(), begin, begin + static_cast<std::ptrdiff_t>(length));
    }
    const std::vector<int32_t> no_targets(tokens.size(), -1);
    const SequenceBatch batch = {.sequences = at_a_time,
                                 .length = static_cast<int32_t>(length),
                                 .tokens = tokens,
                                 .targets = no_targets,
                                 .ce_weights = {},
                                 .kl_weights = {}};
    Observations seen(model.parameters().backend(), fits, at_a_time);
    const absl::StatusOr<Tensor> hidden = model.Hidden(
        batch, settings,
        [&seen](int32_t layer, const Tensor& q, const Tensor& k) { seen.Add(layer, q, k); });
    RETURN_IF_ERROR(hidden.status());
    RETURN_IF_ERROR(seen.status());
  }
  std::vector<LinearThresholds> thresholds;
  for (const ThresholdFit& fit : fits) thresholds.push_back(fit.Solve(options.mass));
  return thresholds;
}

}  // namespace eta::training
