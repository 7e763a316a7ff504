// Selections that may differ between backends, because rounding alone decides them: a block is as
// good as at its threshold, or as another one that is rescued (eta-semantics.md, "What is
// counted").
#pragma once

#include <string>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {

// "" if the two selections and their counts agree, or differ only in such blocks of rows with
// relative thresholds or confirmed reads; else what differs. `reference` holds the case. Other rows
// must agree.
std::string SelectionDifferences(const AttentionCase& attention_case, AttentionStep& reference,
                                 const AttentionResult& got, const AttentionResult& want);

// Whether row `row` selected the same blocks for all its heads.
bool SameSelection(const AttentionCase& attention_case, int64_t row, const AttentionResult& got,
                   const AttentionResult& want);

// "" if mass kept and error of output agree, in rows of the same selection, but for `tolerance`;
// else what differs.
std::string ShadowDifferences(const AttentionCase& attention_case, const AttentionResult& got,
                              const AttentionResult& want, double tolerance);

// "" if the counts of recall agree, but for keys that may reach their threshold or not, and for
// keys of the blocks in which the selections differ; else what differs.
std::string RecallDifferences(const AttentionCase& attention_case, AttentionStep& reference,
                              const AttentionResult& got, const AttentionResult& want);

}  // namespace eta::testing
