// Large random ragged steps with the reference's answer, for backends that take many rows at once.
#pragma once

#include <cstdint>
#include <memory>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {

struct JudgedCase {
  std::unique_ptr<AttentionCase> attention_case;
  AttentionResult want;
  std::shared_ptr<Device> device;            // the reference's
  std::shared_ptr<AttentionStep> reference;  // the case in its memory
};

// A case of 1 to 64 sequences with up to 4096 keys each: decode and prefill rows, forked prefixes,
// predicted and frozen thresholds, z per head, cells over prompts, every option of attention. Every
// bound that decides something is clear of its threshold, so counts have one right answer. Several
// threads may call it at once. An 8-bit cache gets shapes that tensor cores support.
JudgedCase MakeJudgedCase(uint64_t seed, NarrowTypes narrow = {});

}  // namespace eta::testing
