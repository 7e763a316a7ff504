// Random packed weights, as a GGUF file stores them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/weights/ggml_type.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {

// The types whose products are of integers; for ever.
const std::vector<GgmlLayout>& PackedLayouts();

// Blocks with random bits, and with float16 scales of both signs around 2^-6.
std::vector<std::byte> RandomBlocks(Random& random, const GgmlLayout& layout, size_t count);

// A matrix [rows, cols] of such blocks, which points to `layout` and into `storage`. REQUIRES: cols
// is a multiple of the layout's block.
HostMatrix RandomPackedMatrix(Random& random, const GgmlLayout& layout, int64_t rows, int64_t cols,
                              std::vector<std::byte>& storage);

// Its numbers by ggml's formulas.
HostTensor Unpacked(const HostMatrix& matrix);

}  // namespace eta::testing
