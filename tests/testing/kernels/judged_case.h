// Large random ragged steps with the reference's answer, for backends that take many rows at once.
#pragma once

#include <cstdint>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {

struct JudgedCase {
  AttentionCase attention_case;
  AttentionResult want;
};

// Of 1 to 64 sequences and up to 4096 keys each: decode and prefill rows, forked prefixes,
// predicted and frozen thresholds, z per head, cells over prompts, every option of attention. Where
// a bound decides something, it is clear of its threshold, so that counts have one right answer.
// May run in several threads at once. With an 8-bit cache, of shapes that tensor cores take.
JudgedCase MakeJudgedCase(uint64_t seed, NarrowTypes narrow = {});

}  // namespace eta::testing
