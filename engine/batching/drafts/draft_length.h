// How many tokens of a draft a step verifies for one sequence: as many as make its batch fastest by
// what was accepted of it lately, or none.
//
// Of a draft, each token is right with some probability a if those before it were. So k of them
// bring 1 + a + ... + a^k tokens, and cost k rows more ("Fast Inference from Transformers via
// Speculative Decoding", Leviathan et al. 2023, equation 1). Drafts of long matches are right far
// more often than those of short ones, which chance makes too: each kind has its own a.
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>

#include "engine/batching/drafts/acceptance.h"

namespace eta {

class DraftLength {
 public:
  static constexpr int32_t kShort = 3;
  static constexpr int32_t kLong = 7;
  static constexpr int32_t kMostRunning = 8;  // with more, rows are worth more to others
  static constexpr int32_t kLongMatch = 8;    // tokens; what is shorter is another kind

  // 0, kShort or kLong. `match`: as of SuffixIndex::Propose; 0: there is no draft. `running`: the
  // sequences that decode in the step, this one among them. `row_cost`: by how much of itself a
  // row more of the sequence makes that step longer, over 0. Drafts that no longer pay are tried
  // again after a while, the less often the longer they have not paid.
  int32_t Next(int32_t match, int32_t running, double row_cost);

  // What became of such a draft: accepted <= drafted, which may be fewer than Next said.
  void Observe(int32_t match, int32_t drafted, int32_t accepted) {
    KindOf(match).Observe(drafted, accepted);
  }

 private:
  Acceptance& KindOf(int32_t match) { return kinds_[match >= kLongMatch ? 1 : 0]; }

  std::array<Acceptance, 2> kinds_{Acceptance(0.6), Acceptance(0.8)};  // as of most texts
};

}  // namespace eta
