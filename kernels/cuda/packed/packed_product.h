// A product with packed weights for a step of few rows, with the ops around it as row_product.h has
// them.
//
// A row's bits depend on that row alone, for every R up to kMostIntegerRows, for every R from there
// to kMostNarrowRows, and from there to kMostPackedRows: how K is cut follows from the weight, the
// device and the kernel, and the columns of a tensor core's product do not meet. Of up to
// kMostIntegerRows rows it also follows from whether SwiGLU rides along.
#pragma once

#include <cstdint>

#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/row_product.h"

namespace eta::cuda {

inline constexpr int64_t kMostPackedRows = 64;
// With parts of int8 and int4 alone: these are multiplied as integers.
inline constexpr int64_t kMostIntegerRows = 2;
// With a norm in front. Every thread block normalises all rows, and has little work of its own.
inline constexpr int64_t kMostNormedRows = 2;

// More are multiplied by warpgroups, where the device has these.
inline constexpr int64_t kMostNarrowRows = 16;

// As RunRowProduct, for packed weights. Returns false, and does nothing, if there is no kernel for
// these shapes and types: more than kMostPackedRows rows, with a norm more than kMostNormedRows;
// x of another type than products, or out of neither this type nor float32; a K that is no multiple
// of 8, or rows that are not aligned to 16 bytes; rows of a norm that do not fit into shared
// memory; SwiGlu of parts that are not two of one type and size.
bool RunPackedProduct(Context& context, const RowProduct& product);  // packed_product.cu

// The part of RunPackedProduct for more than kMostNarrowRows rows by the products of warpgroups of
// sm_90a, without a norm and without SwiGlu.
bool RunWideProduct(Context& context, const RowProduct& product);  // packed_product.cu

}  // namespace eta::cuda
