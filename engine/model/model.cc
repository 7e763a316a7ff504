#include "engine/model/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/model/selection_lists.h"
#include "engine/model/weights/index_metric.h"
#include "engine/model/weights/layer_experts.h"
#include "engine/model/weights/weight_loader.h"
#include "kernels/checks.h"
#include "kernels/params/calibration.h"
#include "kernels/params/experts.h"
#include "kernels/params/layer.h"
#include "kernels/params/selection.h"

namespace eta {
namespace {

// Null where there is no buffer.
const float* FloatsOf(const std::unique_ptr<Buffer>& buffer) {
  return buffer ? buffer->as<float>() : nullptr;
}

}  // namespace

struct Model::Layer {
  std::unique_ptr<Buffer> attention_norm;       // [D]
  std::unique_ptr<Matrix> qkv;                  // [(HQ + 2 HKV) d, D]
  std::unique_ptr<Buffer> qkv_bias;             // [(HQ + 2 HKV) d]; null: none
  std::unique_ptr<Buffer> query_norm;           // [d]; null: heads are not normed
  std::unique_ptr<Buffer> key_norm;             // [d]
  std::unique_ptr<Buffer> threshold_weight;     // [HQ, HQ d]; null without a predictor
  std::unique_ptr<Buffer> threshold_bias;       // [HQ]
  std::unique_ptr<Matrix> out_projection;       // [D, HQ d]
  std::unique_ptr<Buffer> out_bias;             // [D]; null: none
  std::unique_ptr<Buffer> sinks;                // [HQ]; null: heads have none
  std::unique_ptr<Buffer> attention_post_norm;  // [D]; null: what it gives is added as it is
  std::unique_ptr<Buffer> ffn_norm;             // [D]
  std::unique_ptr<Buffer> ffn_post_norm;        // [D]; likewise
  std::unique_ptr<Matrix> gate_up;              // [2F, D]; null: the layer has experts
  std::unique_ptr<Matrix> down;                 // [D, F]; likewise
  LayerExperts experts;                         // without a router: the layer has none
  std::unique_ptr<Buffer> index_metric;         // [HKV, d, d]; null: the identity
  std::unique_ptr<Buffer> index_centre;         // [HKV, d]; null: zero
};

// Activations of one step, reused by every layer; R is the backend's PaddedRows() of the largest
// step. What MatMul reads, and gate_up, is in the backend's activation_dtype().
struct Model::Workspace {
  std::vector<std::unique_ptr<Buffer>> buffers;
  TensorView residual;          // [R, D]
  TensorView normed;            // [R, D]
  TensorView branch;            // [R, D]: what is normed before it is added
  TensorView qkv;               // [R, (HQ + 2 HKV) d]
  TensorView thresholds;        // [R, HQ]
  TensorView attended;          // [R, HQ d]
  TensorView gate_up;           // [R, 2F]
  TensorView activated;         // [R, F]
  TensorView router_logits;     // [R, E]
  TensorView expert_gate_up;    // [R k, 2F']: of the rows with each of their experts
  TensorView expert_activated;  // [R k, F']
  TensorView expert_out;        // [R k, D]
  ExpertChoice choice;
  TensorView logit_hidden;  // [max_logit_rows, D]
  TensorView logits;        // [max_logit_rows, V]
  BlockSelection selection;
  PrefillSelection prefill_selection;
  std::vector<int32_t> tokens_attended;  // [R, HQ], when the caller wants no counts
  std::vector<int32_t> tokens_read;      // [R, HKV]
  std::vector<int32_t> values_read;      // [R, HKV]
};

Model::Model(ModelConfig config, Backend& backend, const ModelOptions& options)
    : config_(std::move(config)),
      backend_(backend),
      max_rows_(options.max_rows),
      max_decode_rows_(options.max_decode_rows > 0 ? options.max_decode_rows : options.max_rows),
      softmax_scale_(config_.softmax_scale()) {}

Model::~Model() = default;

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const TensorSource& source, Backend& backend,
                                                   const ModelOptions& options) {
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(source.config_json()));
  RETURN_IF_ERROR(ValidateTensors(config, source.tensors()));
  config.index = options.index.value_or(config.index);
  config = ForContext(std::move(config), options.max_context);
  auto model = std::unique_ptr<Model>(new Model(std::move(config), backend, options));
  RETURN_IF_ERROR(model->LoadWeights(source, options.allow_nonfinite_weights, options.weights));
  if (source.index_metric() != nullptr) {
    RETURN_IF_ERROR(model->LoadIndexMetric(*source.index_metric()));
  }
  RETURN_IF_ERROR(model->AllocateWorkspace(options));
  return model;
}

absl::Status Model::LoadWeights(const TensorSource& source, bool allow_nonfinite,
                                WeightFormat format) {
  WeightLoader load(source, backend_, allow_nonfinite, format);
  load.Matrix({"model.embed_tokens.weight"}, embedding_);
  // A tied checkpoint may ship a head all the same. As in transformers, one that is not the
  // embedding counts.
  const bool ships_head = source.tensors().contains("lm_head.weight");
  if (ships_head &&
      !(config_.tie_word_embeddings && load.Equal("lm_head.weight", "model.embed_tokens.weight"))) {
    load.Matrix({"lm_head.weight"}, head_);
  }
  const auto norm = [&](const std::string& name, std::unique_ptr<Buffer>& buffer) {
    load.Floats({name}, buffer, config_.unit_norms ? 1.0f : 0.0f);
  };
  norm("model.norm.weight", final_norm_);
  layers_.resize(static_cast<size_t>(config_.num_layers));
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    Layer& layer = layers_[i];
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    norm(prefix + "input_layernorm.weight", layer.attention_norm);
    load.Matrix(
        {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
        layer.qkv);
    if (config_.qkv_bias) {
      load.Floats({attention + "q_proj.bias", attention + "k_proj.bias", attention + "v_proj.bias"},
                  layer.qkv_bias);
    }
    if (config_.head_norms) {
      norm(attention + "q_norm.weight", layer.query_norm);
      norm(attention + "k_norm.weight", layer.key_norm);
    }
    if (config_.has_predictor && config_.IsFull(i)) {
      load.Floats({attention + "tau_proj.weight"}, layer.threshold_weight);
      load.Floats({attention + "tau_proj.bias"}, layer.threshold_bias);
    }
    load.Matrix({attention + "o_proj.weight"}, layer.out_projection);
    if (config_.out_bias) load.Floats({attention + "o_proj.bias"}, layer.out_bias);
    if (config_.sinks) load.Floats({attention + "sinks"}, layer.sinks);
    if (config_.post_norms) {
      norm(prefix + "post_attention_layernorm.weight", layer.attention_post_norm);
      norm(prefix + "pre_feedforward_layernorm.weight", layer.ffn_norm);
      norm(prefix + "post_feedforward_layernorm.weight", layer.ffn_post_norm);
    } else {
      norm(prefix + "post_attention_layernorm.weight", layer.ffn_norm);
    }
    if (config_.HasExperts(i)) {
      LoadExperts(config_, mlp, load, layer.experts);
      continue;
    }
    load.Matrix({mlp + "gate_proj.weight", mlp + "up_proj.weight"}, layer.gate_up);
    load.Matrix({mlp + "down_proj.weight"}, layer.down);
  }
  return load.status();
}

// It is checked whatever the index is, so that a file which could not serve is known at once. It is
// kept where records are made with it.
absl::Status Model::LoadIndexMetric(const TensorReader& file) {
  RETURN_IF_ERROR(ValidateIndexMetric(config_, file));
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    ASSIGN_OR_RETURN(auto read, ReadIndexMetric(config_, file, i));
    if (config_.index != IndexKind::kOutlier) continue;
    RETURN_IF_ERROR(UploadFloats(backend_, read.metric, layers_[i].index_metric));
    RETURN_IF_ERROR(UploadFloats(backend_, read.centre, layers_[i].index_centre));
  }
  return absl::OkStatus();
}

absl::Status Model::AllocateWorkspace(const ModelOptions& options) {
  workspace_ = std::make_unique<Workspace>();
  Workspace& ws = *workspace_;
  absl::Status status;
  const auto allocate = [&](size_t bytes) -> std::byte* {
    if (!status.ok()) return nullptr;
    auto buffer = backend_.Allocate(bytes);
    if (!buffer.ok()) {
      status = buffer.status();
      return nullptr;
    }
    ws.buffers.push_back(*std::move(buffer));
    return ws.buffers.back()->data();
  };
  const auto tensor = [&](int64_t rows, int64_t cols, DType dtype) {
    auto* data = reinterpret_cast<float*>(
        allocate(static_cast<size_t>(rows) * static_cast<size_t>(cols) * SizeOf(dtype)));
    return TensorView{data, rows, cols, cols, dtype};
  };
  const ModelConfig& c = config_;
  const DType activation = backend_.activation_dtype();
  const int64_t rows = backend_.PaddedRows(max_rows_);
  const int64_t logit_rows = backend_.PaddedRows(max_logit_rows());
  const int64_t q_cols = int64_t{c.num_query_heads} * c.head_dim;
  const int64_t kv_cols = int64_t{c.num_kv_heads} * c.head_dim;
  ws.residual = tensor(rows, c.model_dim, DType::kFloat32);
  ws.normed = tensor(rows, c.model_dim, activation);
  if (c.post_norms) ws.branch = tensor(rows, c.model_dim, DType::kFloat32);
  ws.qkv = tensor(rows, q_cols + 2 * kv_cols, DType::kFloat32);
  ws.thresholds = tensor(rows, c.num_query_heads, DType::kFloat32);
  ws.attended = tensor(rows, q_cols, activation);
  if (c.num_experts == 0 || std::ranges::count(c.expert_layers, false) > 0) {
    ws.gate_up = tensor(rows, 2 * int64_t{c.ffn_dim}, activation);
    ws.activated = tensor(rows, c.ffn_dim, activation);
  }
  if (c.num_experts > 0) {
    const int64_t places = rows * c.experts_per_token;
    const auto integers = [&](int64_t count) {
      return reinterpret_cast<int32_t*>(allocate(static_cast<size_t>(count) * sizeof(int32_t)));
    };
    ws.router_logits = tensor(rows, c.num_experts, DType::kFloat32);
    ws.expert_gate_up = tensor(places, 2 * int64_t{c.expert_ffn_dim}, activation);
    ws.expert_activated = tensor(places, c.expert_ffn_dim, activation);
    ws.expert_out = tensor(places, c.model_dim, DType::kFloat32);
    ws.choice = {.num_experts = c.num_experts,
                 .per_row = c.experts_per_token,
                 .experts = integers(places),
                 .weights = tensor(rows, c.experts_per_token, DType::kFloat32).data,
                 .places = integers(places),
                 .rows = integers(places),
                 .place_end = integers(c.num_experts)};
  }
  ws.logit_hidden = tensor(logit_rows, c.model_dim, activation);
  ws.logits = tensor(logit_rows, c.vocab_size, DType::kFloat32);
  const int32_t block_size = options.block_size > 0 ? options.block_size : c.block_size;
  ws.selection.rows = max_decode_rows_;
  ws.selection.capacity = ListCapacity(options.max_context, block_size);
  const auto list_bytes =
      static_cast<size_t>(ws.selection.rows * c.num_kv_heads * ws.selection.capacity) *
      sizeof(uint32_t);
  ws.selection.blocks = reinterpret_cast<uint32_t*>(allocate(list_bytes));
  ws.selection.heads = reinterpret_cast<uint32_t*>(allocate(list_bytes));
  const auto rescued = static_cast<size_t>(ws.selection.rows * c.num_query_heads);
  ws.selection.rescued = reinterpret_cast<int32_t*>(allocate(rescued * sizeof(int32_t)));
  ws.prefill_selection.words = MaskWords(options.max_context, block_size);
  ws.prefill_selection.admitted = reinterpret_cast<uint64_t*>(allocate(static_cast<size_t>(
      max_rows_ * MaskBytesPerRow(c.num_query_heads, options.max_context, block_size))));
  const auto counts = static_cast<size_t>(rows * c.num_kv_heads);
  ws.selection.counts = reinterpret_cast<int32_t*>(allocate(counts * sizeof(int32_t)));
  ws.tokens_attended.resize(static_cast<size_t>(rows * c.num_query_heads));
  ws.tokens_read.resize(counts);
  ws.values_read.resize(counts);
  return status;
}

size_t Model::weight_bytes() const {
  return shared_bytes() + expert_bytes();
}

size_t Model::row_bytes() const {
  const auto chosen = static_cast<size_t>(config_.experts_per_token);
  const auto experts = static_cast<size_t>(std::max(1, config_.num_experts));
  return shared_bytes() + expert_bytes() / experts * chosen;
}

size_t Model::expert_bytes() const {
  size_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.experts.expert_bytes();
  return bytes;
}

size_t Model::shared_bytes() const {
  size_t bytes = embedding_->bytes() + (head_ ? head_->bytes() : 0) + final_norm_->size();
  for (const Layer& layer : layers_) {
    bytes += layer.attention_norm->size() + layer.qkv->bytes() + layer.out_projection->bytes() +
             layer.ffn_norm->size() + layer.experts.router_bytes();
    for (const auto* matrix : {&layer.gate_up, &layer.down}) {
      if (*matrix) bytes += (*matrix)->bytes();
    }
    for (const auto* buffer :
         {&layer.qkv_bias, &layer.query_norm, &layer.key_norm, &layer.threshold_weight,
          &layer.threshold_bias, &layer.out_bias, &layer.sinks, &layer.attention_post_norm,
          &layer.ffn_post_norm, &layer.index_metric, &layer.index_centre}) {
      if (*buffer) bytes += (*buffer)->size();
    }
  }
  return bytes;
}

absl::Status Model::Forward(const BatchView& batch, const KvCache& cache,
                            const ForwardOutputs& outputs) {
  Workspace& ws = *workspace_;
  if (batch.num_rows() > max_rows_) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: ", batch.num_rows(), " rows, at most ", max_rows_));
  }
  for (const SequenceRows& sequence : batch.sequences) {
    const int32_t end = sequence.row_begin + sequence.num_rows;
    if (sequence.kind == RowKind::kPrefill || end <= max_decode_rows_) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "step: a decode row at ", end - 1, ", where only the first ", max_decode_rows_, " may be"));
  }
  const int64_t rows = backend_.PaddedRows(batch.num_rows());
  backend_.Plan(batch);
  const TensorView residual = ws.residual.Rows(0, rows);
  const TensorView normed = ws.normed.Rows(0, rows);
  backend_.Embed({embedding_.get(), residual, config_.embedding_scale});
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const Layer& layer = layers_[i];
    backend_.RmsNorm({residual, layer.attention_norm->as<float>(), config_.norm_eps, {}, normed});
    backend_.MatMul({normed, layer.qkv.get(), ws.qkv.Rows(0, rows), false, true});
    Attention(i, batch, cache, outputs);
    AddProduct(ws.attended.Rows(0, rows), *layer.out_projection, layer.attention_post_norm.get());
    if (layer.out_bias) backend_.AddBias({residual, layer.out_bias->as<float>()});
    backend_.RmsNorm({residual, layer.ffn_norm->as<float>(), config_.norm_eps, {}, normed});
    if (layer.experts.router) {
      Experts(i, rows, outputs);
    } else {
      FeedForward(layer, rows);
    }
  }
  return absl::OkStatus();
}

void Model::Attention(int32_t layer_idx, const BatchView& batch, const KvCache& cache,
                      const ForwardOutputs& outputs) {
  Workspace& ws = *workspace_;
  const Layer& layer = layers_[layer_idx];
  const ModelConfig& c = config_;
  const int64_t rows = backend_.PaddedRows(batch.num_rows());
  const int64_t q_cols = int64_t{c.num_query_heads} * c.head_dim;
  const int64_t kv_cols = int64_t{c.num_kv_heads} * c.head_dim;
  const TensorView qkv = ws.qkv.Rows(0, rows);
  const TensorView q = qkv.Columns(0, q_cols);
  const TensorView k = qkv.Columns(q_cols, kv_cols);
  const TensorView v = qkv.Columns(q_cols + kv_cols, kv_cols);
  const TensorView thresholds = ws.thresholds.Rows(0, rows);
  KvLayerView kv = cache.layer(layer_idx);
  if (layer.index_metric) {
    kv.index_metric = layer.index_metric->as<float>();
    kv.index_centre = layer.index_centre->as<float>();
  }

  if (layer.qkv_bias) backend_.AddBias({qkv, layer.qkv_bias->as<float>()});
  if (layer.query_norm) {
    backend_.NormHeads(
        {q, k, layer.query_norm->as<float>(), layer.key_norm->as<float>(), c.head_dim, c.norm_eps});
  }
  if (c.layer(layer_idx).local_rope) {
    backend_.Rope({q, k, c.head_dim, {}, c.local_rope_theta});
  } else if (c.layer(layer_idx).rotates) {
    backend_.Rope({q, k, c.head_dim, c.rope_scaling});
  }
  if (!c.IsFull(layer_idx)) kv.records = nullptr;  // nothing is selected in its window
  backend_.AppendKv({k, v, cache.geometry(), kv});
  if (!c.IsFull(layer_idx))
    return AttendInWindow(layer_idx, q, cache.geometry(), batch, kv, outputs);
  backend_.PredictThresholds(
      {layer_idx, q, FloatsOf(layer.threshold_weight), FloatsOf(layer.threshold_bias), thresholds});
  const int64_t step = int64_t{layer_idx} * batch.num_rows();
  const AttentionCounts counts = {
      outputs.tokens_attended ? outputs.tokens_attended + step * c.num_query_heads
                              : ws.tokens_attended.data(),
      outputs.tokens_read ? outputs.tokens_read + step * c.num_kv_heads : ws.tokens_read.data(),
      outputs.values_read ? outputs.values_read + step * c.num_kv_heads : ws.values_read.data()};
  const float* const sinks = FloatsOf(layer.sinks);
  backend_.SelectBlocks({layer_idx, q, thresholds, c.num_query_heads, cache.geometry(), kv,
                         softmax_scale_, ws.selection, counts, sinks});
  backend_.SelectPrefillBlocks({layer_idx, q, thresholds, c.num_query_heads, cache.geometry(), kv,
                                softmax_scale_, ws.prefill_selection, counts, sinks});
  const AttentionParams attention = {q,
                                     thresholds,
                                     c.num_query_heads,
                                     cache.geometry(),
                                     kv,
                                     softmax_scale_,
                                     c.gate,
                                     c.beta,
                                     ws.selection,
                                     ws.attended.Rows(0, rows),
                                     counts.values_read,
                                     ws.prefill_selection,
                                     /*window=*/0,
                                     sinks};
  backend_.DecodeAttention(attention);
  backend_.PrefillAttention(attention);

  if (!outputs.shadow.empty() && !outputs.shadow[layer_idx].rows.empty()) {
    const ShadowLayer& shadow = outputs.shadow[layer_idx];
    backend_.MeasureShadow({attention, shadow.rows, shadow.mass, shadow.error});
  }
  const bool calibrates = std::any_of(batch.sequences.begin(), batch.sequences.end(),
                                      [](const SequenceRows& s) { return s.calibrate; });
  if (outputs.cells != nullptr && calibrates) {
    const int64_t heads = int64_t{layer_idx} * c.num_query_heads;
    backend_.CollectCalibration({q, thresholds, c.num_query_heads, cache.geometry(), kv,
                                 softmax_scale_, c.gate, c.beta, outputs.bins,
                                 outputs.cells + heads * CalibrationCells(outputs.bins).size()});
  }
  if (outputs.above != nullptr && outputs.above_admitted != nullptr) {
    backend_.CountRecall({attention, outputs.above + layer_idx * c.num_query_heads,
                          outputs.above_admitted + layer_idx * c.num_query_heads});
  }
  if (outputs.thresholds != nullptr) {
    backend_.Download(outputs.thresholds + step * c.num_query_heads,
                      reinterpret_cast<const std::byte*>(thresholds.data),
                      static_cast<size_t>(batch.num_rows()) *
                          static_cast<size_t>(c.num_query_heads) * sizeof(float));
  }
}

// No threshold, selection or measurement is of such a layer: it counts nothing.
void Model::AttendInWindow(int32_t layer_idx, const TensorView& q, const KvGeometry& geometry,
                           const BatchView& batch, const KvLayerView& kv,
                           const ForwardOutputs& outputs) {
  const ModelConfig& c = config_;
  const AttentionParams attention = {.q = q,
                                     .thresholds = {},
                                     .num_query_heads = c.num_query_heads,
                                     .geometry = geometry,
                                     .kv = kv,
                                     .softmax_scale = softmax_scale_,
                                     .gate = Gate::kNone,
                                     .beta = c.beta,
                                     .selection = {},
                                     .out = workspace_->attended.Rows(0, q.rows),
                                     .window = c.layer(layer_idx).window,
                                     .sinks = FloatsOf(layers_[layer_idx].sinks)};
  backend_.DecodeAttention(attention);
  backend_.PrefillAttention(attention);
  const auto zero = [&](auto* out, int32_t heads) {
    if (out == nullptr) return;
    const int64_t size = int64_t{batch.num_rows()} * heads;
    std::fill_n(out + layer_idx * size, size, 0);
  };
  zero(outputs.tokens_attended, c.num_query_heads);
  zero(outputs.tokens_read, c.num_kv_heads);
  zero(outputs.values_read, c.num_kv_heads);
  zero(outputs.thresholds, c.num_query_heads);
}

void Model::FeedForward(const Layer& layer, int64_t rows) {
  Workspace& ws = *workspace_;
  const TensorView gate_up = ws.gate_up.Rows(0, rows);
  const TensorView activated = ws.activated.Rows(0, rows);
  backend_.MatMul({ws.normed.Rows(0, rows), layer.gate_up.get(), gate_up, false, true});
  backend_.SwiGlu({gate_up, activated, config_.activation});
  AddProduct(activated, *layer.down, layer.ffn_post_norm.get());
}

void Model::AddProduct(const TensorView& x, const Matrix& weight, const Buffer* post_norm) {
  const TensorView residual = workspace_->residual.Rows(0, x.rows);
  if (post_norm == nullptr) return backend_.MatMul({x, &weight, residual, true, true});
  const TensorView branch = workspace_->branch.Rows(0, x.rows);
  backend_.MatMul({x, &weight, branch, false, true});
  backend_.RmsNorm({branch, post_norm->as<float>(), config_.norm_eps, {}, residual, true});
}

void Model::Experts(int32_t layer_idx, int64_t rows, const ForwardOutputs& outputs) {
  Workspace& ws = *workspace_;
  const LayerExperts& experts = layers_[layer_idx].experts;
  ExpertOps& ops = backend_.experts();
  const int64_t places = rows * config_.experts_per_token;
  const TensorView normed = ws.normed.Rows(0, rows);
  const TensorView logits = ws.router_logits.Rows(0, rows);
  const TensorView gate_up = ws.expert_gate_up.Rows(0, places);
  const TensorView activated = ws.expert_activated.Rows(0, places);
  const TensorView out = ws.expert_out.Rows(0, places);
  int32_t* const rows_of_experts =
      outputs.expert_rows ? outputs.expert_rows + int64_t{layer_idx} * config_.num_experts
                          : nullptr;
  backend_.MatMul({normed, experts.router.get(), logits, false});
  if (experts.router_bias) backend_.AddBias({logits, experts.router_bias->as<float>()});
  ops.RouteRows({logits, config_.normalise_experts, ws.choice, rows_of_experts});
  ops.MultiplyExperts(
      {normed, true, ws.choice, experts.gate_up.get(), gate_up, FloatsOf(experts.gate_up_bias)});
  backend_.SwiGlu({gate_up, activated, config_.activation});
  ops.MultiplyExperts(
      {activated, false, ws.choice, experts.down.get(), out, FloatsOf(experts.down_bias)});
  ops.AddExperts({out, ws.choice, ws.residual.Rows(0, rows)});
}

void Model::ComputeLogits(std::span<const int32_t> rows) {
  Workspace& ws = *workspace_;
  if (rows.empty()) return;
  const int64_t count = backend_.PaddedRows(static_cast<int64_t>(rows.size()));
  const TensorView hidden = ws.logit_hidden.Rows(0, count);
  backend_.RmsNorm({ws.residual, final_norm_->as<float>(), config_.norm_eps, rows, hidden});
  backend_.MatMul(
      {hidden, head_ ? head_.get() : embedding_.get(), ws.logits.Rows(0, count), false});
}

void Model::Sample(std::span<SampleRow> rows) {
  const SampleParams params = {workspace_->logits, rows};
  refused_.Update(CheckSample(params));
  if (refused_.ok()) backend_.Sample(params);
}

absl::Status Model::Finish() {
  const absl::Status finished = backend_.Finish();
  const absl::Status refused = std::exchange(refused_, absl::OkStatus());
  return finished.ok() ? refused : finished;
}

void Model::DownloadLogits(int32_t i, float* out) {
  backend_.Download(out, reinterpret_cast<const std::byte*>(workspace_->logits.row(i)),
                    static_cast<size_t>(config_.vocab_size) * sizeof(float));
}

}  // namespace eta
