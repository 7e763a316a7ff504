#include "training/export/trained_tensors.h"

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta::training {
namespace {

constexpr char kPredictorBias[] = "tau_proj.bias";

DType StoredAs(const Parameter& parameter) {
  const bool matrix = parameter.shape.size() == 2;
  const bool predictor = absl::StrContains(parameter.name, ".tau_proj.");
  return matrix && !predictor ? DType::kBFloat16 : DType::kFloat32;
}

}  // namespace

TrainedTensors::TrainedTensors(const Parameters& parameters, std::string config_json,
                               const TensorReader* index_metric)
    : parameters_(parameters), config_json_(std::move(config_json)), index_metric_(index_metric) {
  for (const Parameter& parameter : parameters_.layout().parameters()) {
    const DType dtype = StoredAs(parameter);
    tensors_[parameter.name] = {.dtype = dtype,
                                .shape = parameter.shape,
                                .begin = 0,
                                .end = static_cast<uint64_t>(parameter.count) * SizeOf(dtype)};
  }
  AddZeroPredictors();
}

// The server's predictors have a weight: where thresholds are constants, one of zeros.
void TrainedTensors::AddZeroPredictors() {
  for (const Parameter& parameter : parameters_.layout().parameters()) {
    if (!absl::EndsWith(parameter.name, kPredictorBias)) continue;
    const std::string attention =
        parameter.name.substr(0, parameter.name.size() - std::strlen(kPredictorBias));
    const std::string weight = attention + "tau_proj.weight";
    if (tensors_.contains(weight)) continue;
    const std::vector<int64_t> shape = {parameter.count,
                                        tensors_.at(attention + "q_proj.weight").shape.front()};
    const auto elements = static_cast<uint64_t>(shape[0]) * static_cast<uint64_t>(shape[1]);
    tensors_[weight] = {.dtype = DType::kFloat32,
                        .shape = shape,
                        .begin = 0,
                        .end = elements * SizeOf(DType::kFloat32)};
  }
}

absl::StatusOr<std::vector<std::byte>> TrainedTensors::Read(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat("tensor ", name, " is not there"));
  }
  if (parameters_.layout().Find(name) == nullptr) {
    return std::vector<std::byte>(found->second.bytes());
  }
  ASSIGN_OR_RETURN(const std::vector<float> values, parameters_.Read(name));
  std::vector<std::byte> data(found->second.bytes());
  for (size_t i = 0; i < values.size(); ++i) {
    StoreElement(found->second.dtype, data.data(), static_cast<int64_t>(i), values[i]);
  }
  return data;
}

}  // namespace eta::training
