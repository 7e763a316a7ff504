#include "engine/checkpoint/quantized/quantization_config.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostBlock = 65536;
constexpr int64_t kGroupMultiple = 32;

std::string Named(const std::string& field) {
  return absl::StrCat("config.json: quantization_config.", field, " ");
}
absl::Status Invalid(const std::string& field, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat(Named(field), sentence));
}
absl::Status Unsupported(const std::string& field, const std::string& sentence) {
  return absl::UnimplementedError(absl::StrCat(Named(field), sentence));
}

// Null where it is absent, or null.
const Json* Find(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// `prefix` stands before the field in errors.
absl::StatusOr<std::string> Text(const Json& object, const std::string& prefix, const char* field,
                                 const std::string& absent) {
  const Json* value = Find(object, field);
  if (value == nullptr) return absent;
  if (!value->is_string()) return Invalid(prefix + field, "must be a text");
  return value->get<std::string>();
}

absl::StatusOr<int64_t> ToSize(const Json& value, const std::string& field) {
  if (!value.is_number_integer() || value < 1 || value > kMostBlock) {
    return Invalid(field, absl::StrCat("must be an integer in 1..", kMostBlock));
  }
  return value.get<int64_t>();
}

absl::Status ReadBlock(const Json* block, const std::string& field, Quantization& out) {
  if (block == nullptr || !block->is_array() || block->size() != 2) {
    return Invalid(field, "must be two integers");
  }
  out.scope = Quantization::Scope::kBlock;
  ASSIGN_OR_RETURN(out.block_rows, ToSize((*block)[0], field));
  ASSIGN_OR_RETURN(out.block_cols, ToSize((*block)[1], field));
  return absl::OkStatus();
}

absl::StatusOr<Quantization> ReadFloat8(const Json& config) {
  ASSIGN_OR_RETURN(const auto format, Text(config, "", "fmt", "e4m3"));
  if (format != "e4m3") {
    return Unsupported("fmt", absl::StrCat(Quoted(format), " is not supported, only e4m3"));
  }
  Quantization out;
  if (const Json* block = Find(config, "weight_block_size")) {
    out.scale = "weight_scale_inv";
    RETURN_IF_ERROR(ReadBlock(block, "weight_block_size", out));
    return out;
  }
  out.scale = "weight_scale";
  out.scope = Quantization::Scope::kTensor;
  return out;
}

absl::Status ReadScope(const Json& weights, const std::string& prefix, Quantization& out) {
  using Scope = Quantization::Scope;
  ASSIGN_OR_RETURN(const auto strategy, Text(weights, prefix, "strategy", "tensor"));
  if (strategy == "block" && out.form == Quantization::Form::kFloat8) {
    return ReadBlock(Find(weights, "block_structure"), prefix + "block_structure", out);
  }
  if (strategy == "tensor" || strategy == "channel") {
    out.scope = strategy == "tensor" ? Scope::kTensor : Scope::kChannel;
    return absl::OkStatus();
  }
  if (strategy != "group") {
    return Unsupported(prefix + "strategy", absl::StrCat(Quoted(strategy), " is not supported"));
  }
  out.scope = Scope::kGroup;
  const Json* size = Find(weights, "group_size");
  if (size == nullptr) return Invalid(prefix + "group_size", "is missing");
  ASSIGN_OR_RETURN(out.block_cols, ToSize(*size, prefix + "group_size"));
  if (out.block_cols % kGroupMultiple == 0) return absl::OkStatus();
  return Unsupported(prefix + "group_size",
                     absl::StrCat(out.block_cols, " is not a multiple of ", kGroupMultiple));
}

absl::Status ReadWeights(const Json& weights, const std::string& prefix, Quantization& out) {
  const bool floats = out.form == Quantization::Form::kFloat8;
  ASSIGN_OR_RETURN(const auto type, Text(weights, prefix, "type", "int"));
  if (type != (floats ? "float" : "int")) {
    return Unsupported(prefix + "type", absl::StrCat(Quoted(type), " does not fit the format"));
  }
  const Json* bits = Find(weights, "num_bits");
  if (bits == nullptr) return Invalid(prefix + "num_bits", "is missing");
  const bool packed = out.form == Quantization::Form::kPacked;
  if (!bits->is_number_integer() || (*bits != 8 && !(packed && *bits == 4))) {
    return Unsupported(prefix + "num_bits",
                       packed ? "is not supported, only 4 and 8" : "is not supported, only 8");
  }
  out.bits = bits->get<int>();
  if (const Json* symmetric = Find(weights, "symmetric")) {
    if (!symmetric->is_boolean()) return Invalid(prefix + "symmetric", "must be true or false");
    out.symmetric = symmetric->get<bool>();
  }
  if (!out.symmetric && out.bits != 4) {
    return Unsupported(prefix + "symmetric", "false is not supported for 8 bits");
  }
  ASSIGN_OR_RETURN(const auto order, Text(weights, prefix, "actorder", "static"));
  if (order != "static" && order != "weight") {
    return Unsupported(prefix + "actorder", absl::StrCat(Quoted(order), " is not supported"));
  }
  return ReadScope(weights, prefix, out);
}

absl::StatusOr<Quantization> ReadCompressedTensors(const Json& config) {
  const Json* groups = Find(config, "config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    return Invalid("config_groups", "must be an object of one group");
  }
  if (groups->size() > 1) return Unsupported("config_groups", "of several groups is not supported");
  const auto group = groups->begin();
  const std::string prefix = absl::StrCat("config_groups.", Quoted(group.key()), ".");
  const Json* weights = group->is_object() ? Find(*group, "weights") : nullptr;
  if (weights == nullptr || !weights->is_object()) {
    return Invalid(prefix + "weights", "must be an object");
  }
  ASSIGN_OR_RETURN(const auto whole, Text(config, "", "format", "dense"));
  ASSIGN_OR_RETURN(const auto format, Text(*group, prefix, "format", whole));
  Quantization out;
  out.scale = "weight_scale";
  if (format == "float-quantized") {
    out.form = Quantization::Form::kFloat8;
  } else if (format == "int-quantized") {
    out.form = Quantization::Form::kInt8;
  } else if (format == "pack-quantized") {
    out.form = Quantization::Form::kPacked;
  } else {
    return Unsupported("format", absl::StrCat(Quoted(format),
                                              " is not supported, only float-quantized, "
                                              "int-quantized and pack-quantized"));
  }
  RETURN_IF_ERROR(ReadWeights(*weights, prefix + "weights.", out));
  return out;
}

}  // namespace

absl::StatusOr<Quantization> ParseQuantization(const Json& config) {
  if (!config.is_object()) {
    return absl::InvalidArgumentError("config.json: quantization_config must be an object");
  }
  ASSIGN_OR_RETURN(const auto method, Text(config, "", "quant_method", ""));
  if (method == "fp8") return ReadFloat8(config);
  if (method == "mxfp4") return Quantization{.form = Quantization::Form::kMxfp4};
  if (method == "compressed-tensors") return ReadCompressedTensors(config);
  return Unsupported("quant_method", absl::StrCat(Quoted(method),
                                                  " is not supported, only fp8, mxfp4 and "
                                                  "compressed-tensors"));
}

}  // namespace eta
