// Selections that may differ between backends, because a block is as good as at its threshold.
#pragma once

#include <string>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {

// "" if the two selections and their counts agree, or differ only in blocks whose estimated mass
// lies within Clearance() of a relative threshold; else what differs. `reference` holds the case.
// Rows without relative thresholds must agree.
std::string SelectionDifferences(const AttentionCase& attention_case, AttentionStep& reference,
                                 const AttentionResult& got, const AttentionResult& want);

// Whether row `row` selected the same blocks for all its heads.
bool SameSelection(const AttentionCase& attention_case, int64_t row, const AttentionResult& got,
                   const AttentionResult& want);

// "" if mass kept and error of output agree, in rows of the same selection, but for `tolerance`;
// else what differs.
std::string ShadowDifferences(const AttentionCase& attention_case, const AttentionResult& got,
                              const AttentionResult& want, double tolerance);

// Whether some sequence has relative thresholds.
bool HasRelative(const AttentionCase& attention_case);

}  // namespace eta::testing
