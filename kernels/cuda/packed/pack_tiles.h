// Matrices of a checkpoint as the device's packed weights (packed_layout.h). Nothing here touches a
// device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/packed/packed_layout.h"

namespace eta::cuda {

// What `matrix` is kept as under a format, where products are of 16 bits; kNone: as numbers of the
// type of products.
PackedType PackedTypeOf(const HostMatrix& matrix, WeightFormat format);

// What is packed of a matrix, and as what. kSixteen: numbers of `sixteen`, of 16 bits.
struct PackJob {
  const HostMatrix& matrix;
  WeightFormat format;
  PackedType type;
  DType sixteen;
};

// Packs the tiles from `first` on, as many as `units` has 16 of: their chunks, and the units of
// their channels. Throws std::bad_alloc.
//
// int8: integers that are stored with one scale for 32 stay, others are rounded to 127ths of the
// group's greatest magnitude. int4: integers stay. Scales and minimums are rounded to float16, in
// units of the channel: a power of two.
void PackTiles(const PackJob& job, int64_t first, std::span<std::byte> chunks,
               std::span<float> units);

}  // namespace eta::cuda
