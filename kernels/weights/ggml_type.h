// How ggml stores a tensor: in blocks along a row, each with its own scales.
//
// Numbers and layouts are those of ggml (ggml.h, ggml-common.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/dtype.h"

namespace eta {

enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
  kMXFP4 = 39,
};

struct GgmlLayout {
  GgmlType type;
  const char* name;
  uint32_t block_elements;  // a row is a whole number of blocks
  uint32_t block_bytes;
  DType unpacked;  // what UnpackBlocks writes
};

// Nullopt for a type that is not read here.
std::optional<GgmlLayout> FindGgmlLayout(uint32_t type);

// "IQ4_XS" and the like, also of types that are not read here; their number where nobody knows it.
std::string GgmlTypeName(uint32_t type);

// The names of the types that are read, for an error.
std::string KnownGgmlTypes();

// Blocks as numbers of `layout.unpacked`: float32 from quantised blocks, by ggml's formulas with
// each product and each sum rounded to float32; the stored number from the others.
// REQUIRES: `blocks` is a whole number n of blocks; `out` has room for n * block_elements numbers.
void UnpackBlocks(const GgmlLayout& layout, std::span<const std::byte> blocks,
                  std::span<std::byte> out);

}  // namespace eta
