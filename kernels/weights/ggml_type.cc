// lint: fuzz-covered
#include "kernels/weights/ggml_type.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/weights/integer_groups.h"

namespace eta {
namespace {

constexpr GgmlLayout kLayouts[] = {
    {GgmlType::kF32, "F32", 1, 4, DType::kFloat32},
    {GgmlType::kF16, "F16", 1, 2, DType::kFloat16},
    {GgmlType::kBF16, "BF16", 1, 2, DType::kBFloat16},
    {GgmlType::kQ8_0, "Q8_0", 32, 34, DType::kFloat32},
    {GgmlType::kQ4_0, "Q4_0", 32, 18, DType::kFloat32},
    {GgmlType::kQ4_1, "Q4_1", 32, 20, DType::kFloat32},
    {GgmlType::kQ5_0, "Q5_0", 32, 22, DType::kFloat32},
    {GgmlType::kQ5_1, "Q5_1", 32, 24, DType::kFloat32},
    {GgmlType::kQ4_K, "Q4_K", 256, 144, DType::kFloat32},
    {GgmlType::kQ5_K, "Q5_K", 256, 176, DType::kFloat32},
    {GgmlType::kQ6_K, "Q6_K", 256, 210, DType::kFloat32},
    {GgmlType::kMXFP4, "MXFP4", 32, 17, DType::kFloat32},
};

struct NamedType {
  uint32_t type;
  const char* name;
};
constexpr NamedType kOtherTypes[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {40, "NVFP4"},
};

void UnpackQuantised(const GgmlLayout& layout, std::span<const std::byte> blocks,
                     std::span<std::byte> out) {
  std::array<IntegerGroup, 8> groups;
  std::array<float, kGroupNumbers> numbers;
  const size_t count = layout.block_elements / kGroupNumbers;
  for (; !blocks.empty(); blocks = blocks.subspan(layout.block_bytes)) {
    DecodeGroups(layout, blocks.first(layout.block_bytes), std::span(groups).first(count));
    for (size_t g = 0; g < count; ++g) {
      UnpackGroup(groups[g], FormOf(layout.type).has_low, numbers);
      std::memcpy(out.data(), numbers.data(), sizeof(numbers));
      out = out.subspan(sizeof(numbers));
    }
  }
}

}  // namespace

std::optional<GgmlLayout> FindGgmlLayout(uint32_t type) {
  const auto* found = std::find_if(
      std::begin(kLayouts), std::end(kLayouts),
      [type](const GgmlLayout& layout) { return static_cast<uint32_t>(layout.type) == type; });
  if (found == std::end(kLayouts)) return std::nullopt;
  return *found;
}

std::string GgmlTypeName(uint32_t type) {
  if (const auto layout = FindGgmlLayout(type)) return layout->name;
  const auto* found = std::find_if(std::begin(kOtherTypes), std::end(kOtherTypes),
                                   [type](const NamedType& named) { return named.type == type; });
  return found == std::end(kOtherTypes) ? absl::StrCat("number ", type) : found->name;
}

std::string KnownGgmlTypes() {
  std::string names;
  for (const GgmlLayout& layout : kLayouts) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", layout.name);
  }
  return names;
}

void UnpackBlocks(const GgmlLayout& layout, std::span<const std::byte> blocks,
                  std::span<std::byte> out) {
  if (IsPacked(layout.type)) {
    UnpackQuantised(layout, blocks, out);
  } else if (!blocks.empty()) {
    std::memcpy(out.data(), blocks.data(), blocks.size());
  }
}

}  // namespace eta
