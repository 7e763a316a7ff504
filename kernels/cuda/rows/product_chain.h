// Products of few rows that follow one another, as one kernel. A layer's are the product behind
// attention, gate and up, down, and the next layer's Q, K and V.
//
// The bits are those of RunRowProduct, product by product. A product may read and write what those
// before it wrote.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/row_product.h"

namespace eta::cuda {

// Puts the first of the products on the device's stream, as many as one kernel does together, and
// returns how many these are. Returns 0, and does nothing, if they are fewer than `least`. A
// product that RunRowProduct has no kernel for ends them, and so do weights of another type than
// the first (packed ones count as one type), and rows of a norm that leave too little shared
// memory; with packed weights any rows of x. Devices that are not of compute capability 9.0 have no
// such kernel.
//
// The kernel takes every multiprocessor for itself. Two of them at once, of two streams of a
// device, could each wait for thread blocks that the other one keeps out. So a process that uses it
// has one Device for a GPU.
size_t RunProductChain(Context& context, std::span<const RowProduct> products,
                       size_t least = 2);  // product_chain.cu

}  // namespace eta::cuda
