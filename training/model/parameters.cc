#include "training/model/parameters.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/safetensors.h"

namespace eta::training {
namespace {

std::string Shape(const std::vector<int64_t>& dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

absl::Status CheckTensor(const Parameter& parameter, const TensorInfo& info) {
  if (info.shape != parameter.shape) {
    return absl::FailedPreconditionError(absl::StrCat(Quoted(parameter.name), " has shape ",
                                                      Shape(info.shape), ", expected ",
                                                      Shape(parameter.shape)));
  }
  if (info.dtype != DType::kFloat32 && info.dtype != DType::kFloat16 &&
      info.dtype != DType::kBFloat16) {
    return absl::FailedPreconditionError(absl::StrCat(Quoted(parameter.name), " has dtype ",
                                                      std::string(Name(info.dtype)),
                                                      ", expected float32, float16 or bfloat16"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ReadTensor(const TensorSource& source,
                                              const Parameter& parameter) {
  const auto found = source.tensors().find(parameter.name);
  if (found == source.tensors().end()) {
    return absl::FailedPreconditionError(absl::StrCat(Quoted(parameter.name), " is missing"));
  }
  RETURN_IF_ERROR(CheckTensor(parameter, found->second));
  ASSIGN_OR_RETURN(auto bytes, source.Read(parameter.name));
  std::vector<float> values(static_cast<size_t>(parameter.count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadElement(found->second.dtype, bytes.data(), static_cast<int64_t>(i));
    if (!std::isfinite(values[i])) {
      return absl::FailedPreconditionError(
          absl::StrCat(Quoted(parameter.name), " is not finite at element ", i));
    }
  }
  return values;
}

// A head of a model that ties it must be the embedding: training would lose it.
absl::Status CheckTiedHead(const TensorSource& source) {
  constexpr char kHead[] = "lm_head.weight";
  if (!source.tensors().contains(kHead)) return absl::OkStatus();
  ASSIGN_OR_RETURN(auto head, source.Read(kHead));
  ASSIGN_OR_RETURN(auto embedding, source.Read("model.embed_tokens.weight"));
  if (head == embedding) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "\"lm_head.weight\" is not the embedding, which tie_word_embeddings says it is");
}

}  // namespace

Parameters::Parameters(const ModelSpec& spec, TrainedPart trained, TrainingBackend& backend)
    : spec_(spec), backend_(backend), layout_(spec, trained) {}

absl::StatusOr<std::unique_ptr<Parameters>> Parameters::Create(const ModelSpec& spec,
                                                               TrainedPart trained,
                                                               TrainingBackend& backend) {
  RETURN_IF_ERROR(ValidateSpec(spec));
  auto parameters = std::unique_ptr<Parameters>(new Parameters(spec, trained, backend));
  const auto allocate = [&](int64_t count, DType dtype,
                            std::unique_ptr<Buffer>& buffer) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, backend.Allocate(static_cast<size_t>(count) * SizeOf(dtype)));
    backend.Zero(buffer->data(), buffer->size());
    return absl::OkStatus();
  };
  const ParameterLayout& layout = parameters->layout_;
  RETURN_IF_ERROR(allocate(layout.count(), DType::kFloat32, parameters->values_));
  if (backend.activation_dtype() != DType::kFloat32) {
    RETURN_IF_ERROR(allocate(layout.count(), backend.activation_dtype(), parameters->rounded_));
  }
  if (layout.trained_count() > 0) {
    RETURN_IF_ERROR(allocate(layout.trained_count(), DType::kFloat32, parameters->gradients_));
  }
  return parameters;
}

absl::Status Parameters::Initialise(const InitOptions& options) {
  for (const Parameter& parameter : layout_.parameters()) {
    const std::vector<float> values = InitialValues(parameter, options, spec_.config.num_layers);
    backend_.Upload(this->values() + parameter.offset, values.data(),
                    values.size() * sizeof(float));
  }
  Round();
  return backend_.Finish();
}

absl::Status Parameters::Load(const TensorSource& source, const InitOptions& options) {
  if (spec_.config.tie_word_embeddings) RETURN_IF_ERROR(CheckTiedHead(source));
  for (const Parameter& parameter : layout_.parameters()) {
    const bool starts_here =
        IsPredictor(parameter.name) && !source.tensors().contains(parameter.name);
    ASSIGN_OR_RETURN(auto values, starts_here
                                      ? InitialValues(parameter, options, spec_.config.num_layers)
                                      : ReadTensor(source, parameter));
    backend_.Upload(this->values() + parameter.offset, values.data(),
                    values.size() * sizeof(float));
  }
  Round();
  return backend_.Finish();
}

void Parameters::Round() {
  if (!rounded_) return;
  const int64_t count = layout_.count();
  backend_.Convert({values(), DType::kFloat32, 1, count, count},
                   {rounded(), backend_.activation_dtype(), 1, count, count});
}

void Parameters::ZeroGradients() {
  if (gradients_) backend_.Zero(gradients_->data(), gradients_->size());
}

absl::StatusOr<std::vector<float>> Parameters::Read(std::string_view name) const {
  const Parameter* parameter = layout_.Find(name);
  if (parameter == nullptr) {
    return absl::NotFoundError(absl::StrCat("no parameter ", Quoted(std::string(name))));
  }
  std::vector<float> out(static_cast<size_t>(parameter->count));
  backend_.Download(out.data(), values() + parameter->offset, out.size() * sizeof(float));
  return out;
}

absl::StatusOr<std::vector<float>> Parameters::ReadGradient(std::string_view name) const {
  const Parameter* parameter = layout_.Find(name);
  if (parameter == nullptr || !parameter->trained) {
    return absl::NotFoundError(absl::StrCat("no trained parameter ", Quoted(std::string(name))));
  }
  std::vector<float> out(static_cast<size_t>(parameter->count));
  backend_.Download(out.data(), gradients() + parameter->offset, out.size() * sizeof(float));
  return out;
}

absl::Status Parameters::Write(std::string_view name, std::span<const float> values) {
  const Parameter* parameter = layout_.Find(name);
  if (parameter == nullptr) {
    return absl::NotFoundError(absl::StrCat("no parameter ", Quoted(std::string(name))));
  }
  if (values.size() != static_cast<size_t>(parameter->count)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(parameter->name), " has ", parameter->count, " elements, not ", values.size()));
  }
  float* at = this->values() + parameter->offset;
  backend_.Upload(at, values.data(), values.size_bytes());
  if (rounded_) {
    const DType dtype = backend_.activation_dtype();
    auto* to = rounded_->data() + parameter->offset * static_cast<int64_t>(SizeOf(dtype));
    backend_.Convert({at, DType::kFloat32, 1, parameter->count, parameter->count},
                     {to, dtype, 1, parameter->count, parameter->count});
  }
  return absl::OkStatus();
}

const float* Parameters::Value(std::string_view name) const {
  const Parameter* parameter = layout_.Find(name);
  return parameter == nullptr ? nullptr : values() + parameter->offset;
}

float* Parameters::Gradient(std::string_view name) const {
  const Parameter* parameter = layout_.Find(name);
  return parameter == nullptr || !parameter->trained ? nullptr : gradients() + parameter->offset;
}

Tensor Parameters::Weight(std::string_view name, int64_t rows, int64_t cols) const {
  const Parameter* parameter = layout_.Find(name);
  if (parameter == nullptr) return {};
  const DType dtype = backend_.activation_dtype();
  auto* data =
      static_cast<std::byte*>(rounded()) + parameter->offset * static_cast<int64_t>(SizeOf(dtype));
  return {data, dtype, rows, cols, cols};
}

}  // namespace eta::training
