// How rows attend that make drafts (Speculation::kSelf): as an ordinary decode row of the sequence
// does, only sparser. Each such row selects anew, from its own query: the records of a block are a
// few percent of its bytes, so that it reads hardly more than one with a list of blocks frozen at
// the last verification would, and what it leaves out is what it does not look for.
#pragma once

#include <optional>

#include "engine/model/model_config.h"
#include "engine/request/request.h"

namespace eta {

// Settings that were measured best for drafts (tests/bench/RESULTS.md): what a row of
// relative thresholds adds to its log-sum-exp, and the width of a predicted threshold's bound.
inline constexpr float kDraftRelativeC = -3.0f;
inline constexpr float kDraftZ = 1.0f;

// Of rows that attend as `own` says. Absent: the model selects nothing by itself, or these rows
// read about as little already.
std::optional<ResolvedAttention> DraftAttention(const ResolvedAttention& own,
                                                const ModelConfig& config);

}  // namespace eta
