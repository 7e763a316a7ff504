// Products of few rows that follow one another, as one kernel. A layer's are the product behind
// attention, gate and up, down, and the next layer's Q, K and V.
//
// A product may read and write what those before it wrote. The order of sums is another than that
// of RunRowProduct.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/row_product.h"

namespace eta::cuda {

// Puts the first of the products on the device's stream, as many as one kernel does together, and
// returns how many these are. Returns 0, and does nothing, if they are fewer than `least`. A
// product that RunRowProduct has no kernel for ends them, and so do packed weights, weights of
// another type than the first, and rows of x that leave too little shared memory. Devices that are
// not of compute capability 9.0 have no such kernel.
//
// The kernel takes every multiprocessor for itself. Two of them at once, of two streams of a
// device, could each wait for thread blocks that the other one keeps out. So a process that uses it
// has one Device for a GPU.
size_t RunProductChain(Context& context, std::span<const RowProduct> products,
                       size_t least = 3);  // product_chain.cu

}  // namespace eta::cuda
