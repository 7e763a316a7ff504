// lint: untrusted-input, fuzz-covered
#include "engine/model/weights/index_metric.h"

#include <cstring>
#include <map>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/safetensors.h"

namespace eta {
namespace {

absl::Status Differs(const std::string& name, const std::string& sentence) {
  return absl::FailedPreconditionError(
      absl::StrCat("index metric: tensor ", Quoted(name), " ", sentence));
}

absl::StatusOr<std::vector<float>> ReadFloats(const TensorReader& file, const std::string& name) {
  ASSIGN_OR_RETURN(const auto bytes, file.Read(name));
  if (const auto element = FirstNonFinite(bytes, DType::kFloat32)) {
    return Differs(name, absl::StrCat("is NaN or infinite at element ", *element));
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), std::as_writable_bytes(std::span(values)).size());
  return values;
}

}  // namespace

std::string IndexMetricName(int32_t layer_idx) {
  return absl::StrCat("layers.", layer_idx, ".metric");
}

std::string IndexCentreName(int32_t layer_idx) {
  return absl::StrCat("layers.", layer_idx, ".centre");
}

absl::Status ValidateIndexMetric(const ModelConfig& config, const TensorReader& file) {
  std::map<std::string, std::vector<int64_t>> expected;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    expected[IndexMetricName(i)] = {config.num_kv_heads, config.head_dim, config.head_dim};
    expected[IndexCentreName(i)] = {config.num_kv_heads, config.head_dim};
  }
  for (const auto& [name, shape] : expected) {
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) return Differs(name, "is missing");
    const TensorInfo& info = found->second;
    if (info.dtype != DType::kFloat32) {
      return Differs(name,
                     absl::StrCat("has dtype ", std::string(Name(info.dtype)), ", not float32"));
    }
    if (info.shape != shape) {
      return Differs(name, absl::StrCat("has shape [", absl::StrJoin(info.shape, ", "),
                                        "], the model's is [", absl::StrJoin(shape, ", "), "]"));
    }
  }
  for (const auto& entry : file.tensors()) {
    if (!expected.contains(entry.first)) return Differs(entry.first, "is not expected");
  }
  return absl::OkStatus();
}

absl::StatusOr<IndexMetric> ReadIndexMetric(const ModelConfig& config, const TensorReader& file,
                                            int32_t layer_idx) {
  ASSIGN_OR_RETURN(auto metric, ReadFloats(file, IndexMetricName(layer_idx)));
  ASSIGN_OR_RETURN(auto centre, ReadFloats(file, IndexCentreName(layer_idx)));
  const int64_t d = config.head_dim;
  for (int64_t head = 0; head < config.num_kv_heads; ++head) {
    // cannot wrap: inside of the tensor that was read
    const float* c = metric.data() + head * d * d;
    const auto element = [c, d](int64_t i, int64_t j) {
      // cannot wrap: likewise
      return c[i * d + j];
    };
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        if (element(i, j) == element(j, i)) continue;
        return Differs(IndexMetricName(layer_idx),
                       absl::StrCat("is not symmetric: head ", head, ", element ", i, ", ", j));
      }
    }
  }
  return IndexMetric{.metric = std::move(metric), .centre = std::move(centre)};
}

}  // namespace eta
