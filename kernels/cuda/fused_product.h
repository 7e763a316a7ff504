// Finds ops of a program that one kernel of row_product.h does together. Nothing here touches a
// device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/program.h"
#include "kernels/cuda/rows/row_product.h"

namespace eta::cuda {

struct FusedProduct {
  RowProduct product;              // without norm.rows
  std::optional<int64_t> gathers;  // norm.rows, in Uploads
  size_t num_ops = 0;              // how many of the ops it is, from the first on
};

// The longest beginning of `ops` that is one product: RmsNorm, MatMul, then AddBias of what it
// wrote or SwiGlu. Nullopt if they do not begin so, if there are too many rows,
// or if one of these ops reads memory that another one writes, other than as its input.
std::optional<FusedProduct> FuseProduct(std::span<const Op> ops);

// The products at the beginning of `ops` that follow one another with nothing in between, as many
// as the kernel of product_chain.h takes. Each of them begins when those before it have ended, so
// it may read and write what they did.
std::vector<FusedProduct> FuseChain(std::span<const Op> ops);

struct FusedExperts {
  const RouteRowsOp* route = nullptr;  // in front of the product, for a kernel that may do both
  ExpertProduct product;
  const AddExpertsParams* sum = nullptr;  // behind it, likewise
  size_t num_ops = 0;                     // with those two
};

// A product of experts at the beginning of `ops`: with SwiGlu of what it wrote if a kernel does
// both, else with the sum of what it wrote; and with its choice in front. Nullopt if they do not
// begin so.
std::optional<FusedExperts> FuseExperts(std::span<const Op> ops);

}  // namespace eta::cuda
