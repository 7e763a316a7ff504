// Compares the cells that two backends counted. They must be equal, except for differences that
// rounding explains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {

struct CellTolerance {
  // A score within rounding of a bin's edge may be counted on either side: at most this many bins
  // off, and at most this share of all weight (keys outside the range included).
  int32_t score_bins = 1;
  double moved = 0.01;
  // The same for the z that a block needs. One block may move in any case.
  int32_t z_bins = 1;
  double z_moved = 0.02;
  // Keys that may be above their threshold on one backend only: this share of them, and one key.
  double above = 1e-3;
  double gate = 2e-6;  // error of a row's mean m, absolute
};

// For cases that keep every score clear of edges and thresholds, so that rounding moves no key. z
// may still be one bin off, since bounds are rounded.
inline constexpr CellTolerance kClearCells = {.score_bins = 0, .moved = 0.0, .above = 0.0};

// Returns one line per head that differs, at most a few; empty if none does. `got` and `want` are
// [HQ, CalibrationCells(bins).size()] of the case, counted over its rows that calibrate.
std::string CellDifferences(const AttentionCase& attention_case, const std::vector<uint64_t>& got,
                            const std::vector<uint64_t>& want, const CellTolerance& tolerance = {});

}  // namespace eta::testing
