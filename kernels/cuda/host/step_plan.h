// From a batch to the arrays of step_view.h, in host memory. Nothing here touches a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cuda/host/step_view.h"

namespace eta::cuda {

// Rows up to which a step of `rows` rows is filled with padding, so that few sizes occur: each of
// the small ones, which decoding repeats, has its graphs.
int64_t PaddedRows(int64_t rows);

// Where the arrays of a step stand, in bytes from its beginning: the same for all batches of equal
// padded size, because only the last array, the block tables, varies in length beyond that.
class StepLayout {
 public:
  explicit StepLayout(int32_t padded_rows);

  size_t counts() const { return 0; }
  size_t rows() const { return rows_; }
  size_t sequences() const { return sequences_; }
  size_t screen_begin() const { return screen_begin_; }
  size_t tables() const { return tables_; }

  // The arrays of a step that begins at `step`; what profiles bring is not among them.
  StepView View(const std::byte* step) const;

 private:
  int32_t padded_rows_;
  size_t rows_;
  size_t sequences_;
  size_t screen_begin_;
  size_t tables_;
};

// Bytes that the arrays of `batch` take.
size_t StepBytes(const BatchView& batch);

// What sequences bring for every layer and head, [L, HQ], host; either may be null.
struct StepProfile {
  const float* frozen_thresholds = nullptr;
  const float* head_z = nullptr;

  bool operator==(const StepProfile&) const = default;
};

// What the host keeps of a packed batch.
struct PackedStep {
  struct Rows {
    int32_t begin = 0;
    int32_t count = 0;
  };
  int32_t num_rows = 0;     // R
  int32_t padded_rows = 0;  // at least 1
  bool has_prefill = false;
  bool calibrates = false;            // a prefill sequence does
  bool single_rows = true;            // every sequence decodes, one row
  std::vector<Rows> decode_rows;      // of each decode sequence
  std::vector<StepProfile> profiles;  // distinct: StepRow::frozen and head_z are indices
};

// Writes all arrays but screen_begin, StepBytes(batch) bytes, and returns the rest.
PackedStep PackStep(const BatchView& batch, std::byte* step);

// Puts other tokens, [R], into a packed step.
void SetTokens(std::span<const int32_t> tokens, int32_t padded_rows, std::byte* step);

// Writes screen_begin and StepCounts::screen_units of a packed step, for blocks of `block_size`.
void PackScreening(int32_t padded_rows, int32_t block_size, std::byte* step);

}  // namespace eta::cuda
