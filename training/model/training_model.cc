#include "training/model/training_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "training/model/activations.h"
#include "training/model/training_layer.h"

namespace eta::training {
namespace {

// What each position weighs, in the order of Activations::position_weights.
enum PositionWeights { kGateDensity, kBlockDensity, kGateGradient, kBlockGradient };

void AddTo(std::vector<float>& sums, const std::vector<float>& more) {
  if (sums.empty()) sums.assign(more.size(), 0.0f);
  for (size_t i = 0; i < more.size(); ++i) sums[i] += more[i];
}

double Mean(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value);
  return values.empty() ? std::numeric_limits<double>::quiet_NaN()
                        : sum / static_cast<double>(values.size());
}

// Weights of rows by their loss, a part of the mean over `rows` rows of the step.
std::vector<float> RowWeights(std::span<const float> weights, int64_t rows, double scale) {
  std::vector<float> scaled(static_cast<size_t>(rows), static_cast<float>(scale));
  for (size_t i = 0; i < weights.size(); ++i) {
    scaled[i] = static_cast<float>(scale * static_cast<double>(weights[i]));
  }
  return scaled;
}

}  // namespace

void BatchLoss::Add(const BatchLoss& other) {
  cross_entropy += other.cross_entropy;
  targets += other.targets;
  hits += other.hits;
  weighted += other.weighted;
  divergence += other.divergence;
  rows += other.rows;
  AddTo(gate_density, other.gate_density);
  AddTo(block_density, other.block_density);
}

double BatchLoss::MeanGateDensity() const {
  return Mean(gate_density);
}
double BatchLoss::MeanBlockDensity() const {
  return Mean(block_density);
}

struct TrainingModel::State {
  State(const ModelSpec& spec, TrainingBackend& backend) : activations(spec, backend) {}

  Activations activations;
  size_t saved_bytes = 0;  // of AttentionForwardParams::saved, each layer
  std::vector<TrainingLayer> layers;
  Tensor embedding;  // [V, D]
  Tensor head;       // [V, D]
  const float* last_norm = nullptr;
  float* grad_embedding = nullptr;
  float* grad_head = nullptr;
  float* grad_last_norm = nullptr;
};

TrainingModel::TrainingModel(const ModelSpec& spec, Parameters& parameters,
                             const ModelLimits& limits)
    : spec_(spec), parameters_(parameters), backend_(parameters.backend()), limits_(limits) {}

TrainingModel::~TrainingModel() = default;

absl::StatusOr<std::unique_ptr<TrainingModel>> TrainingModel::Create(const ModelSpec& spec,
                                                                     Parameters& parameters,
                                                                     const ModelLimits& limits) {
  RETURN_IF_ERROR(ValidateSpec(spec));
  if (limits.sequences < 1 || limits.length < 1) {
    return absl::InvalidArgumentError("model: batches need at least one sequence of one token");
  }
  auto model = std::unique_ptr<TrainingModel>(new TrainingModel(spec, parameters, limits));
  RETURN_IF_ERROR(model->Allocate());
  return model;
}

absl::Status TrainingModel::Allocate() {
  state_ = std::make_unique<State>(spec_, backend_);
  State& state = *state_;
  const ModelConfig& c = spec_.config;
  const AttentionShape shape = ShapeOf(limits_.sequences, limits_.length);
  for (const bool group_blocks : {false, true}) {
    state.saved_bytes =
        std::max(state.saved_bytes,
                 backend_.AttentionSavedBytes(shape, {spec_.gate, 1.0f, 1.0f, group_blocks}));
  }
  for (int32_t i = 0; i < c.num_layers; ++i) {
    state.layers.emplace_back(spec_, c.layer(i), backend_, WeightsOf(spec_, parameters_, i),
                              GradientsOf(parameters_, i));
  }
  const std::string head = c.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  state.embedding = parameters_.Weight("model.embed_tokens.weight", c.vocab_size, c.model_dim);
  state.grad_embedding = parameters_.Gradient("model.embed_tokens.weight");
  state.head = parameters_.Weight(head, c.vocab_size, c.model_dim);
  state.grad_head = parameters_.Gradient(head);
  state.last_norm = parameters_.Value("model.norm.weight");
  state.grad_last_norm = parameters_.Gradient("model.norm.weight");
  return state.activations.Allocate(
      {limits_.sequences, limits_.length, limits_.recompute, limits_.backward}, state.saved_bytes);
}

AttentionShape TrainingModel::ShapeOf(int32_t sequences, int32_t length) const {
  const ModelConfig& c = spec_.config;
  return {sequences,         length,
          c.num_query_heads, c.num_kv_heads,
          c.head_dim,        static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)))};
}

Tensor TrainingModel::head() const {
  return state_->head;
}

absl::Status TrainingModel::Check(const SequenceBatch& batch) const {
  if (batch.sequences < 1 || batch.sequences > limits_.sequences || batch.length < 1 ||
      batch.length > limits_.length) {
    return absl::InvalidArgumentError(absl::StrCat("batch: ", batch.sequences, " sequences of ",
                                                   batch.length, " tokens, at most ",
                                                   limits_.sequences, " of ", limits_.length));
  }
  const auto rows = static_cast<size_t>(batch.rows());
  const auto fits = [&](std::span<const float> weights) {
    return weights.empty() || weights.size() == rows;
  };
  if (batch.tokens.size() != rows || !fits(batch.ce_weights) || !fits(batch.kl_weights) ||
      (!batch.targets.empty() && batch.targets.size() != rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch: tokens, targets and weights must be ", rows, " each"));
  }
  const auto outside = [&](std::span<const int32_t> ids, int32_t lowest) {
    return std::any_of(ids.begin(), ids.end(),
                       [&](int32_t id) { return id < lowest || id >= spec_.config.vocab_size; });
  };
  if (outside(batch.tokens, 0) || outside(batch.targets, -1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch: a token outside the vocabulary of ", spec_.config.vocab_size));
  }
  return absl::OkStatus();
}

LayerAttention TrainingModel::AttentionOf(const SequenceBatch& batch,
                                          const StepSettings& settings) const {
  const Activations& a = state_->activations;
  LayerAttention attention{};
  attention.shape = ShapeOf(batch.sequences, batch.length);
  attention.gate = {spec_.gate, settings.beta, settings.gate_strength,
                    settings.regulariser.group_blocks};
  if (!spec_.has_thresholds()) return attention;
  attention.gate_sum = a.gate_sum;
  if (settings.regulariser.block_share > 0.0) attention.block_sum = a.block_sum;
  if (settings.regulariser.weight == 0.0) return attention;
  const auto at = [&](PositionWeights which) {
    return RowGradient{a.position_weights + int64_t{which} * limits_.length, 0, 0};
  };
  if (settings.regulariser.block_share < 1.0) attention.grad_gate_sum = at(kGateGradient);
  if (settings.regulariser.block_share > 0.0) attention.grad_block_sum = at(kBlockGradient);
  return attention;
}

void TrainingModel::PrepareGates(const SequenceBatch& batch, const StepSettings& settings) {
  if (!spec_.has_thresholds()) return;
  const Activations& a = state_->activations;
  const ModelConfig& c = spec_.config;
  const RegulariserWeights densities = DensityWeights(batch.length, settings.sequences_in_step);
  const RegulariserWeights gradients =
      RegulariserGradients(settings.regulariser, ShapeOf(batch.sequences, batch.length),
                           c.num_layers, settings.sequences_in_step);
  const auto upload = [&](PositionWeights which, const std::vector<float>& weights) {
    backend_.Upload(a.position_weights + int64_t{which} * limits_.length, weights.data(),
                    weights.size() * sizeof(float));
  };
  upload(kGateDensity, densities.gate);
  upload(kBlockDensity, densities.block);
  upload(kGateGradient, gradients.gate);
  upload(kBlockGradient, gradients.block);
  const auto heads = static_cast<size_t>(c.num_layers) * static_cast<size_t>(c.num_query_heads);
  backend_.Zero(a.gate_density, heads * sizeof(float));
  backend_.Zero(a.block_density, heads * sizeof(float));
}

// What the row sums of one layer add to the densities.
void TrainingModel::MeasureGates(int32_t layer, const LayerAttention& attention) {
  const Activations& a = state_->activations;
  const AttentionShape& shape = attention.shape;
  const auto weigh = [&](const float* sums, int32_t heads, PositionWeights which, float* out) {
    if (sums == nullptr) return;
    backend_.WeighRowSums({sums, shape.sequences, heads, shape.length,
                           a.position_weights + int64_t{which} * limits_.length,
                           out + int64_t{layer} * heads});
  };
  weigh(attention.gate_sum, shape.num_query_heads, kGateDensity, a.gate_density);
  weigh(attention.block_sum, attention.gate.block_heads(shape), kBlockDensity, a.block_density);
}

absl::Status TrainingModel::Forward(const SequenceBatch& batch, const StepSettings& settings,
                                    const LayerObserver& observe) {
  RETURN_IF_ERROR(Check(batch));
  State& state = *state_;
  const Activations& a = state.activations;
  const int64_t rows = batch.rows();
  const LayerAttention attention = AttentionOf(batch, settings);
  if (backend_.AttentionSavedBytes(attention.shape, attention.gate) > state.saved_bytes) {
    return absl::InvalidArgumentError("batch: attention keeps more than the largest batch's");
  }
  const Tensor residual = a.residual.Rows(0, rows);
  PrepareGates(batch, settings);
  backend_.Embed({batch.tokens, state.embedding, residual});
  for (int32_t i = 0; i < spec_.config.num_layers; ++i) {
    const LayerActivations layer = a.Layer(i, rows);
    state.layers[static_cast<size_t>(i)].Forward(attention, residual, a.Kept(i, rows), layer);
    MeasureGates(i, attention);
    if (observe) observe(i, layer.q, layer.k);
  }
  backend_.RmsNorm({residual, state.last_norm, spec_.config.norm_eps, a.hidden.Rows(0, rows),
                    a.last_inverse_rms});
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TrainingModel::Hidden(const SequenceBatch& batch,
                                             const StepSettings& settings,
                                             const LayerObserver& observe) {
  RETURN_IF_ERROR(Forward(batch, settings, observe));
  return state_->activations.hidden.Rows(0, batch.rows());
}

void TrainingModel::HeadLosses(const SequenceBatch& batch, const StepSettings& settings,
                               const TrainingModel* teacher, bool backward, BatchLoss& loss) {
  const State& state = *state_;
  const Activations& a = state.activations;
  const int64_t rows = batch.rows();
  const double rows_in_step = static_cast<double>(settings.sequences_in_step) * batch.length;
  const std::vector<float> ce_weights =
      RowWeights(batch.ce_weights, rows, static_cast<double>(settings.ce_scale) / rows_in_step);
  std::vector<float> kl_weights;
  HeadLossParams params{};
  params.hidden = a.hidden.Rows(0, rows);
  params.head = state.head;
  params.targets = batch.targets;
  params.ce_weights = ce_weights;
  params.cross_entropy = a.cross_entropy;
  if (teacher != nullptr) {
    kl_weights =
        RowWeights(batch.kl_weights, rows, static_cast<double>(settings.kl_scale) / rows_in_step);
    params.teacher_hidden = teacher->state_->activations.hidden.Rows(0, rows);
    params.teacher_head = teacher->head();
    params.kl_weights = kl_weights;
    params.divergence = a.divergence;
  }
  if (backward) {
    params.grad_hidden = a.grad_hidden.Rows(0, rows);
    params.grad_head = state.grad_head;
  } else {
    params.hit = a.hit;
  }
  backend_.HeadLoss(params);

  const auto count = static_cast<size_t>(rows);
  std::vector<float> cross_entropy(count);
  std::vector<float> divergence(count, 0.0f);
  std::vector<float> hit(count, 0.0f);
  backend_.Download(cross_entropy.data(), a.cross_entropy, count * sizeof(float));
  if (teacher != nullptr) {
    backend_.Download(divergence.data(), a.divergence, count * sizeof(float));
  }
  if (!backward) backend_.Download(hit.data(), a.hit, count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const auto ce = static_cast<double>(cross_entropy[i]);
    const auto kl = static_cast<double>(divergence[i]);
    if (batch.targets[i] >= 0) {
      loss.cross_entropy += ce;
      loss.weighted += ce * static_cast<double>(ce_weights[i]);
      ++loss.targets;
      if (hit[i] > 0.0f) ++loss.hits;
    }
    loss.divergence += kl;
    if (teacher != nullptr) loss.weighted += kl * static_cast<double>(kl_weights[i]);
  }
  loss.rows = rows;
}

void TrainingModel::ReadDensities(const LayerAttention& attention, BatchLoss& loss) const {
  const Activations& a = state_->activations;
  const auto read = [&](const float* from, int32_t heads, std::vector<float>& to) {
    to.resize(static_cast<size_t>(spec_.config.num_layers) * static_cast<size_t>(heads));
    backend_.Download(to.data(), from, to.size() * sizeof(float));
  };
  if (attention.gate_sum != nullptr) {
    read(a.gate_density, attention.shape.num_query_heads, loss.gate_density);
  }
  if (attention.block_sum != nullptr) {
    read(a.block_density, attention.gate.block_heads(attention.shape), loss.block_density);
  }
}

void TrainingModel::Backward(const SequenceBatch& batch, const StepSettings& settings) {
  const State& state = *state_;
  const Activations& a = state.activations;
  const int64_t rows = batch.rows();
  const LayerAttention attention = AttentionOf(batch, settings);
  const Tensor grad = a.grad_residual.Rows(0, rows);
  backend_.Zero(grad.data, static_cast<size_t>(rows * grad.cols) * SizeOf(grad.dtype));
  backend_.RmsNormBackward({a.residual.Rows(0, rows), state.last_norm, a.last_inverse_rms,
                            a.grad_hidden.Rows(0, rows), grad, state.grad_last_norm});
  const int32_t last = spec_.config.num_layers - 1;
  for (int32_t i = last; i >= 0; --i) {
    const TrainingLayer& layer = state.layers[static_cast<size_t>(i)];
    const KeptLayer kept = a.Kept(i, rows);
    const LayerActivations activations = a.Layer(i, rows);
    // The forward pass has left those of the last layer.
    if (limits_.recompute && i != last) layer.Recompute(attention, kept, activations);
    layer.Backward(attention, kept, activations, a.Scratch(rows), grad);
  }
  if (state.grad_embedding != nullptr) {
    backend_.EmbedBackward({batch.tokens, grad, state.grad_embedding});
  }
}

absl::StatusOr<BatchLoss> TrainingModel::Run(const SequenceBatch& batch,
                                             const StepSettings& settings, TrainingModel* teacher,
                                             bool backward) {
  if (backward && !limits_.backward) {
    return absl::InvalidArgumentError("model: made without a backward pass");
  }
  if (batch.targets.empty()) return absl::InvalidArgumentError("batch: it has no targets");
  if (teacher != nullptr) RETURN_IF_ERROR(teacher->Forward(batch, settings, {}));
  RETURN_IF_ERROR(Forward(batch, settings, {}));
  BatchLoss loss;
  HeadLosses(batch, settings, teacher, backward, loss);
  ReadDensities(AttentionOf(batch, settings), loss);
  if (backward) Backward(batch, settings);
  RETURN_IF_ERROR(backend_.Finish());
  return loss;
}

}  // namespace eta::training
