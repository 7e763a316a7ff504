// How many tokens a sequence drafts by sparser reads of its own before a step verifies them: as
// many as bring its tokens soonest by what was accepted of it lately, or none.
//
// A token costs a step, so k of them and their verification are k + 1 steps, which bring
// 1 + a + ... + a^k tokens where a step of its own attention brings one. What is gained is what
// sparser rows read less ("Fast Inference from Transformers via Speculative Decoding", Leviathan et
// al. 2023, equation 1, with c from the bytes of a step). Not thread-safe.
#pragma once

#include <cstdint>

#include "engine/batching/drafts/acceptance.h"

namespace eta {

// In any unit of time, all above 0.
struct SelfDraftCosts {
  double step = 1.0;   // a row's share of a step that draws with its own attention
  double draft = 1.0;  // a row's share of a step that makes a draft
  double row = 1.0;    // one more row in the step that verifies
};

class SelfLength {
 public:
  static constexpr int32_t kMost = 7;

  // 0 to kMost. Drafts that no longer pay are tried again after a while, the less often the longer
  // they have not paid; where even perfect ones would not, none are.
  int32_t Next(const SelfDraftCosts& costs);

  // What became of such drafts: accepted <= drafted.
  void Observe(int32_t drafted, int32_t accepted) { acceptance_.Observe(drafted, accepted); }

 private:
  Acceptance acceptance_{0.8};  // as of most texts
};

}  // namespace eta
