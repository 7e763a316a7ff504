#include "tests/testing/training/toy_model.h"

#include <stdexcept>
#include <string>

#include "engine/base/random.h"

namespace eta::training::testing {
namespace {

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
  return *std::move(value);
}

}  // namespace

ModelSpec ToySpec(const ToyOptions& options) {
  ModelSpec spec;
  spec.attention = options.attention;
  if (!spec.is_native_sparse()) {
    spec.gate = options.gate;
    spec.thresholds = options.thresholds;
  }
  ModelConfig& c = spec.config;
  c.vocab_size = 17;
  c.model_dim = 20;
  c.ffn_dim = 28;
  c.num_layers = options.num_layers;
  c.num_query_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = options.head_dim;
  c.norm_eps = 1e-5f;
  c.rope_theta = 10000.0f;
  c.max_context = 4096;
  c.qkv_bias = options.biases;
  c.out_bias = options.biases;
  c.head_norms = options.head_norms;
  if (options.unrotated) {
    c.layers.resize(static_cast<size_t>(options.num_layers));
    c.layers.back().rotates = false;
  }
  c.tie_word_embeddings = options.tied;
  return spec;
}

ToyModel MakeToy(const ModelSpec& spec, TrainingBackend& backend, const ModelLimits& limits,
                 TrainedPart trained, const InitOptions& init) {
  ToyModel toy;
  toy.parameters = Value(Parameters::Create(spec, trained, backend));
  const absl::Status initialised = toy.parameters->Initialise(init);
  if (!initialised.ok()) throw std::runtime_error(std::string(initialised.message()));
  toy.model = Value(TrainingModel::Create(spec, *toy.parameters, limits));
  return toy;
}

absl::Status PhraseSource::Next(MicroBatch& batch) {
  if (end >= 0 && position >= end) return absl::OutOfRangeError("the phrases have ended");
  batch = {};
  batch.sequences = sequences_;
  batch.length = length_;
  for (int32_t b = 0; b < sequences_; ++b) {
    const auto seed = static_cast<uint64_t>(position * sequences_ + b);
    const auto phrase = static_cast<int32_t>(4 + 4 * UniformDraw(seed, 0));
    const auto token = [&](int32_t t) {
      return static_cast<int32_t>(vocab_ *
                                  UniformDraw(seed, 1 + static_cast<uint64_t>(t % phrase)));
    };
    for (int32_t t = 0; t < length_; ++t) {
      batch.tokens.push_back(token(t));
      batch.targets.push_back(token(t + 1));
    }
  }
  position += stride;
  return absl::OkStatus();
}

}  // namespace eta::training::testing
