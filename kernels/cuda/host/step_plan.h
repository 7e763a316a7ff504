// Packs a batch into the arrays of step_view.h, in host memory. Nothing here touches a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cuda/host/step_view.h"

namespace eta::cuda {

// Rows of up to so many keys are short, and count as equally long.
inline constexpr int32_t kShortKeys = 4096;

// The number of rows to which a step of `rows` rows is padded, so that few sizes occur. Decoding
// repeats small sizes, and each of these has its own graphs.
int64_t PaddedRows(int64_t rows);

// The offsets of a step's arrays, in bytes from its beginning. They are equal for all batches of
// equal padded size and equally many block tables of a sequence, because only the last array, the
// tables, varies in length beyond that. Rows and sequences stand there once for each of a
// sequence's block tables, since they say where it begins.
class StepLayout {
 public:
  explicit StepLayout(int32_t padded_rows, int32_t num_tables = 1);

  size_t counts() const { return 0; }
  size_t rows(int32_t table = 0) const { return rows_ + Shift(table); }
  size_t sequences(int32_t table = 0) const { return sequences_ + Shift(table); }
  size_t screen_begin() const { return screen_begin_; }
  size_t bundles() const { return bundles_; }  // RowBundle [padded rows]
  size_t tables() const { return tables_; }

  // The arrays of a step that begins at `step`, without those that profiles bring; for layers of
  // block table `table`.
  StepView View(const std::byte* step, int32_t table = 0) const;

 private:
  size_t Shift(int32_t table) const {
    return table == 0 ? 0 : more_rows_ - rows_ + static_cast<size_t>(table - 1) * table_bytes_;
  }

  int32_t padded_rows_;
  size_t rows_;
  size_t sequences_;
  size_t screen_begin_;
  size_t bundles_;
  size_t more_rows_;    // rows of block table 1
  size_t table_bytes_;  // rows and sequences of one block table
  size_t tables_;
};

// Bytes that the arrays of `batch` take.
size_t StepBytes(const BatchView& batch);

// The tables of a sequence's profile for every layer and head, [L, HQ], host. Either may be null.
struct StepProfile {
  const float* frozen_thresholds = nullptr;
  const float* head_z = nullptr;

  bool operator==(const StepProfile&) const = default;
};

// The bundles of a step's decode rows.
struct Bundles {
  int32_t count = 0;  // padded; 0: every decode row is by itself
  int32_t rows = 1;   // the most rows of one, padded: 2, 4 or 8

  bool operator==(const Bundles&) const = default;
};

// What a program of a step knows of the step beside its ops.
struct StepShape {
  int32_t padded_rows = 1;
  int32_t num_tables = 1;
  bool single_rows = true;  // every sequence decodes, one row
  bool few_rows = true;     // every sequence decodes, at most kBundleRows rows
  Bundles bundles{};

  bool operator==(const StepShape&) const = default;
};

// The host's knowledge of a packed batch.
struct PackedStep {
  struct Rows {
    int32_t begin = 0;
    int32_t count = 0;
  };
  int32_t num_rows = 0;     // R
  int32_t padded_rows = 0;  // at least 1
  int32_t num_tables = 1;   // block tables of a sequence
  bool has_prefill = false;
  bool calibrates = false;       // a prefill sequence calibrates
  bool relative = false;         // a decode sequence has relative thresholds
  bool sparse_relative = false;  // one of sparse prefill has
  bool confirms = false;         // a decode sequence has confirmed reads
  bool single_rows = true;       // as of StepShape, as the next two
  bool few_rows = true;
  Bundles bundles;
  bool reads_all = true;              // no decode sequence selects blocks
  bool even = true;                   // decode rows are short, or about equally long
  int64_t longest = 0;                // tokens of the longest decode row
  std::vector<Rows> decode_rows;      // rows of each decode sequence
  std::vector<Rows> sparse_rows;      // rows of each sequence of sparse prefill
  std::vector<StepProfile> profiles;  // distinct; StepRow::frozen and head_z index them

  StepShape shape() const {
    return {std::max(padded_rows, 1), num_tables, single_rows, few_rows, bundles};
  }
};

// Writes all arrays but screen_begin, StepBytes(batch) bytes. Returns what the host keeps.
PackedStep PackStep(const BatchView& batch, std::byte* step);

// Replaces the tokens [R] of a packed step.
void SetTokens(std::span<const int32_t> tokens, int32_t padded_rows, std::byte* step);

// Writes screen_begin and StepCounts::screen_units of a packed step, for blocks of `block_size`.
void PackScreening(int32_t padded_rows, int32_t block_size, std::byte* step);

}  // namespace eta::cuda
