// What calibration counted on two backends, compared: equal but for what rounding may do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {

struct CellTolerance {
  // Where a score lies within rounding of a bin's edge, its key may stand on either side of it: by
  // at most so many bins, and at most this share of all weight (keys outside the range included).
  int32_t score_bins = 1;
  double moved = 0.01;
  // Likewise the z that a block needs; one block may move in any case ...
  int32_t z_bins = 1;
  double z_moved = 0.02;
  // ... and whether a key is above its threshold: this share of those, and one key.
  double above = 1e-3;
  double gate = 2e-6;  // of a row's mean m, absolute
};

// No rounding moves any key: for cases that keep every score clear of edges and thresholds. z may
// still be a bin off, since bounds are rounded.
inline constexpr CellTolerance kClearCells = {.score_bins = 0, .moved = 0.0, .above = 0.0};

// One line per head that differs, at most a few; empty: none does. `got` and `want` are
// [HQ, CalibrationCells(bins).size()] of the case, counted over its rows that calibrate.
std::string CellDifferences(const AttentionCase& attention_case, const std::vector<uint64_t>& got,
                            const std::vector<uint64_t>& want, const CellTolerance& tolerance = {});

}  // namespace eta::testing
