#include "tests/bench/eta_bench/model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/model/model_config.h"
#include "kernels/quantize.h"
#include "tests/bench/eta_bench/data.h"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {
namespace {

constexpr size_t kPart = size_t{1} << 16;  // elements that one task makes

uint64_t HashOf(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

std::string Config(const ModelShape& shape) {
  Json config = {{"model_type", "eta"},
                 {"vocab_size", shape.vocab},
                 {"hidden_size", shape.width},
                 {"intermediate_size", shape.ffn},
                 {"num_hidden_layers", shape.layers},
                 {"num_attention_heads", shape.heads},
                 {"num_key_value_heads", shape.kv_heads},
                 {"head_dim", shape.head_dim},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 500000.0},
                 {"max_position_embeddings", shape.max_context},
                 {"tie_word_embeddings", false},
                 {"hidden_act", "silu"},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2},
                 {"eta_block_size", shape.block}};
  if (shape.window > 0) {
    config["model_type"] = "gemma3_text";
    config["sliding_window"] = shape.window;
    config["sliding_window_pattern"] = shape.window_period;
    config["query_pre_attn_scalar"] = shape.head_dim;
    config["tie_word_embeddings"] = true;
    config["dtype"] = "bfloat16";
  } else if (shape.experts > 0) {
    config["model_type"] = "qwen3_moe";
    config["sliding_window"] = nullptr;
    config["num_experts"] = shape.experts;
    config["num_experts_per_tok"] = shape.experts_per_token;
    config["moe_intermediate_size"] = shape.expert_ffn;
    config["norm_topk_prob"] = true;
  } else if (shape.plain) {
    config["model_type"] = "llama";
  } else {
    config["eta_beta"] = 5.0;
    config["eta_gate"] = "silu";
  }
  return config.dump();
}

// "model.layers.3.mlp.experts.17.up_proj.weight" becomes "experts.1.up_proj.weight"; empty of a
// tensor of no expert.
std::string SharedName(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  constexpr int kDifferent = 4;
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return {};
  const size_t number = at + kExperts.size();
  const size_t end = name.find('.', number);
  int expert = 0;
  if (!absl::SimpleAtoi(name.substr(number, end - number), &expert)) return {};
  return absl::StrCat("experts.", expert % kDifferent, name.substr(end));
}

bool IsProjection(const std::string& name) {
  return absl::EndsWith(name, "_proj.weight") && !absl::StrContains(name, "tau_proj");
}

}  // namespace

RandomModel::RandomModel(const ModelShape& shape, uint64_t seed, cpu::Workers& workers, bool float8)
    : seed_(seed), workers_(workers), float8_(float8), config_json_(Config(shape)) {
  const ModelConfig config = Require(ParseModelConfig(config_json_));
  if (config.unit_norms) norm_ = 0.0f;
  for (const auto& [name, dims] : ExpectedTensors(config)) {
    uint64_t bytes = SizeOf(DType::kBFloat16);
    for (const int64_t size : dims) bytes *= static_cast<uint64_t>(size);
    tensors_[name] = {DType::kBFloat16, dims, 0, bytes};
    if (float8_ && IsProjection(name)) tensors_[name].dtype = DType::kFloat32;
  }
}

absl::StatusOr<StoredTensor> RandomModel::ReadStored(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (!float8_ || it == tensors_.end() || !IsProjection(name)) {
    return TensorSource::ReadStored(name);
  }
  const auto rows = static_cast<size_t>(it->second.shape[0]);
  const auto cols = static_cast<size_t>(it->second.shape[1]);
  // Four deviations are the greatest number.
  constexpr float kDeviation = kMaxE4M3 / 4.0f;
  const float scale = 1.0f / std::sqrt(static_cast<float>(cols)) / kDeviation;
  StoredTensor tensor;
  tensor.float8 = {std::vector<float>(rows, scale), 1, static_cast<int64_t>(cols)};
  const std::string shared = SharedName(name);
  if (const auto made = made_.find(shared); made != made_.end()) {
    tensor.bytes = made->second;
    return tensor;
  }
  tensor.bytes.resize(rows * cols);
  const uint64_t seed = seed_ ^ HashOf(shared.empty() ? name : shared);
  workers_.Run(static_cast<int64_t>(rows), [&](int64_t row, int) {
    for (size_t i = static_cast<size_t>(row) * cols; i < static_cast<size_t>(row + 1) * cols; ++i) {
      tensor.bytes[i] = static_cast<std::byte>(FloatToE4M3(kDeviation * RandomNormal(seed, i)));
    }
  });
  if (!shared.empty()) made_[shared] = tensor.bytes;
  return tensor;
}

absl::StatusOr<std::vector<std::byte>> RandomModel::Read(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return absl::NotFoundError(absl::StrCat("tensor ", name));
  const std::string shared = SharedName(name);
  if (shared.empty()) return Make(name, it->second);
  std::vector<std::byte>& made = made_[shared];
  if (made.empty()) made = Make(shared, it->second);
  return made;
}

std::vector<std::byte> RandomModel::Make(const std::string& name, const TensorInfo& info) const {
  std::vector<std::byte> bytes(info.bytes());
  auto* values = reinterpret_cast<uint16_t*>(bytes.data());
  const size_t count = bytes.size() / sizeof(uint16_t);
  if (absl::StrContains(name, "norm")) {
    std::fill_n(values, count, FloatToBFloat16(norm_));
    return bytes;
  }
  if (absl::EndsWith(name, "tau_proj.bias")) return bytes;
  const float scale = 1.0f / std::sqrt(static_cast<float>(info.shape.back()));
  const uint64_t seed = seed_ ^ HashOf(name);
  workers_.Run(static_cast<int64_t>((count + kPart - 1) / kPart), [&](int64_t part, int) {
    const size_t begin = static_cast<size_t>(part) * kPart;
    for (size_t i = begin; i < std::min(count, begin + kPart); ++i) {
      values[i] = FloatToBFloat16(scale * RandomNormal(seed, i));
    }
  });
  return bytes;
}

}  // namespace eta::bench
