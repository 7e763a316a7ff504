#include "engine/model/weights/weight_loader.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/safetensors.h"
#include "kernels/quantize.h"
#include "kernels/weights/block_scales.h"
#include "kernels/weights/float8_scales.h"
#include "kernels/weights/host_rows.h"

namespace eta {
namespace {

// Four bits of these cost more than four bits of all the others: under int4 they keep eight.
bool KeepsEight(std::string_view name) {
  constexpr std::string_view kKept[] = {"embed_tokens.weight", "lm_head.weight", "k_proj.weight",
                                        "v_proj.weight", "down_proj.weight"};
  return std::any_of(std::begin(kKept), std::end(kKept),
                     [&](std::string_view kept) { return name.ends_with(kept); });
}

WeightFormat KeptFormat(std::string_view name, WeightFormat format) {
  return format == WeightFormat::kInt4 && KeepsEight(name) ? WeightFormat::kInt8 : format;
}

}  // namespace

absl::Status UploadFloats(Backend& backend, std::span<const float> values,
                          std::unique_ptr<Buffer>& buffer) {
  ASSIGN_OR_RETURN(buffer, backend.Allocate(values.size_bytes()));
  backend.Upload(buffer->data(), values.data(), values.size_bytes());
  return absl::OkStatus();
}

void WeightLoader::Load(const std::vector<std::string>& names, WeightFormat format, bool exact,
                        std::unique_ptr<eta::Matrix>& matrix) {
  std::vector<StoredTensor> tensors;
  std::vector<Float8Scales> scales(names.size());
  std::vector<HostMatrix> parts;
  for (const std::string& name : names) tensors.push_back(ReadStored(name, format));
  if (!status_.ok()) return;
  for (size_t i = 0; i < names.size(); ++i) {
    const TensorInfo& info = Info(names[i]);
    const auto& blocks = tensors[i].blocks;
    parts.push_back({tensors[i].bytes.data(), info.dtype, info.shape[0], info.shape[1],
                     blocks ? &*blocks : nullptr, KeepsEight(names[i]), exact});
    if (const auto& float8 = tensors[i].float8) {
      scales[i] = {float8->scales.data(), float8->block_rows, float8->block_cols};
      parts.back().float8 = &scales[i];
    }
  }
  auto packed = backend_.Pack(parts, format);
  status_ = packed.status();
  if (packed.ok()) matrix = *std::move(packed);
}

void WeightLoader::Stack(std::vector<std::unique_ptr<eta::Matrix>> matrices,
                         std::unique_ptr<ExpertStack>& stack) {
  if (!status_.ok()) return;
  auto stacked = backend_.experts().Stack(std::move(matrices));
  status_ = stacked.status();
  if (stacked.ok()) stack = *std::move(stacked);
}

void WeightLoader::Floats(const std::vector<std::string>& names, std::unique_ptr<Buffer>& buffer,
                          float added) {
  std::vector<float> values;
  for (const std::string& name : names) {
    const std::vector<std::byte> bytes = Read(name);
    if (!status_.ok()) return;
    const DType dtype = Info(name).dtype;
    const auto count = static_cast<int64_t>(bytes.size() / SizeOf(dtype));
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(LoadElement(dtype, bytes.data(), i) + added);
    }
  }
  status_ = UploadFloats(backend_, values, buffer);
}

bool WeightLoader::Equal(const std::string& a, const std::string& b) {
  const StoredTensor first = ReadStored(a, format_);
  const StoredTensor second = ReadStored(b, format_);
  const auto type = [](const StoredTensor& tensor) {
    return tensor.blocks ? std::optional(tensor.blocks->type) : std::nullopt;
  };
  return Info(a).dtype == Info(b).dtype && type(first) == type(second) &&
         first.float8 == second.float8 && first.bytes == second.bytes;
}

std::vector<std::byte> WeightLoader::Read(const std::string& name) {
  if (!status_.ok()) return {};
  auto bytes = source_.Read(name);
  status_ = bytes.status();
  if (!status_.ok()) return {};
  CheckFinite(name, FirstNonFinite(*bytes, Info(name).dtype));
  return *std::move(bytes);
}

StoredTensor WeightLoader::ReadStored(const std::string& name, WeightFormat format) {
  if (!status_.ok()) return {};
  auto tensor = source_.ReadStored(name);
  status_ = tensor.status();
  if (!status_.ok()) return {};
  if (tensor->float8) {
    CheckFloat8(name, *tensor, format);
  } else if (!tensor->blocks) {
    CheckFinite(name, FirstNonFinite(tensor->bytes, Info(name).dtype));
    if (status_.ok()) CheckRange(name, tensor->bytes, format);
  } else if (const auto block = FirstNonFiniteBlock(*tensor->blocks, tensor->bytes)) {
    Refuse(name, absl::StrCat("block ", *block, ": a scale is NaN or infinite"));
  }
  return *std::move(tensor);
}

void WeightLoader::CheckFloat8(const std::string& name, const StoredTensor& tensor,
                               WeightFormat format) {
  const auto is_nan = [](std::byte code) { return (code & std::byte{0x7F}) == std::byte{0x7F}; };
  const auto found = std::ranges::find_if(tensor.bytes, is_nan);
  if (found != tensor.bytes.end()) CheckFinite(name, found - tensor.bytes.begin());
  // Numbers of a greater one would be infinite, or not in the format's blocks.
  const float most =
      std::min(MostWeight(KeptFormat(name, format)), std::numeric_limits<float>::max()) / kMaxE4M3;
  const auto& scales = tensor.float8->scales;
  const auto beyond = std::ranges::find_if(scales, [&](float s) { return !(std::abs(s) <= most); });
  if (beyond == scales.end() || !status_.ok()) return;
  Refuse(name, absl::StrFormat("scale %d is NaN, infinite or beyond what weights of %s hold",
                               beyond - scales.begin(), Name(format)));
}

void WeightLoader::CheckFinite(const std::string& name, std::optional<int64_t> nonfinite) {
  if (nonfinite) Refuse(name, absl::StrCat("element ", *nonfinite, " is NaN or infinite"));
}

// What blocks that are made at load do not hold would become NaN there.
void WeightLoader::CheckRange(const std::string& name, std::span<const std::byte> numbers,
                              WeightFormat format) {
  const WeightFormat kept = KeptFormat(name, format);
  if (kept != WeightFormat::kInt8 && kept != WeightFormat::kInt4) return;
  const auto over = FirstOverMost(numbers, Info(name).dtype, kept);
  if (!over) return;
  Refuse(name, absl::StrFormat("element %d is beyond %.0f, the most that weights of %s hold", *over,
                               MostWeight(kept), Name(kept)));
}

void WeightLoader::Refuse(const std::string& name, const std::string& sentence) {
  if (allow_nonfinite_) return;
  status_ = absl::FailedPreconditionError(absl::StrCat("tensor ", name, ": ", sentence));
}

}  // namespace eta
