// Bounds on the scores of blocks, from recorded keys: of the product's records in any geometry, as
// the reference backend writes and rounds them, and of the box that holds a block's keys (Quest's).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/tables/measures/recorded_attention.h"
#include "kernels/backend.h"

namespace eta {

enum class BoundKind : uint8_t {
  kFlat,      // moment records with the deviation of the whole block, float16
  kEnvelope,  // moment records with the envelope of sub-blocks of 4, float16
  kOutlier,   // outlier records with that envelope, 8 bits
  kBox        // the least and the largest of each coordinate, not rounded
};
const char* Name(BoundKind kind);

struct BoundSpec {
  BoundKind kind = BoundKind::kEnvelope;
  int32_t block_size = 64;  // b, at least 1; with an envelope a multiple of 4
  float z = 2.0f;           // not read by kBox
};

// The full blocks of one layer. Immutable.
// REQUIRES: the window outlives it.
class BlockBounds {
 public:
  // InvalidArgument for a block size that the kind does not have; ResourceExhausted.
  static absl::StatusOr<BlockBounds> Of(const RecordedWindow& window, const RecordedLayer& layer,
                                        const BoundSpec& spec);

  int32_t block_size() const { return spec_.block_size; }
  // The bounds of the blocks that are full for a row of T keys, [floor(T / b)], scaled as scores
  // are.
  std::vector<float> Row(const RecordedRow& row, int32_t head) const;

 private:
  BlockBounds(const RecordedWindow& window, const BoundSpec& spec)
      : window_(&window), spec_(spec) {}
  absl::Status MakeRecords(const RecordedLayer& layer);
  void MakeBoxes(const RecordedLayer& layer);

  const RecordedWindow* window_;
  BoundSpec spec_;
  KvGeometry geometry_;
  std::vector<std::vector<BlockRecord>> records_;  // [HKV][blocks]
  std::vector<std::vector<float>> low_;            // [HKV][blocks, d]
  std::vector<std::vector<float>> high_;
};

}  // namespace eta
