// The drafts of one sequence: what may follow its newest token, to be verified in one step.
//
// Drafts are of the tokens that they were made behind. Not thread-safe: the step thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/batching/drafts/draft_length.h"
#include "engine/batching/drafts/draft_options.h"
#include "engine/request/request.h"

namespace eta {

class Drafter {
 public:
  // No drafts come of a request that wants none. The prompt is looked at here already.
  Drafter(const DraftOptions& options, const Request& request, std::span<const int32_t> prompt);

  bool on() const { return source_ != nullptr; }
  // Makes drafts, at most `most`, of what follows `tokens`; `running` and `row_cost` as of
  // DraftLength. Without memory there are none.
  void Propose(std::span<const int32_t> tokens, int32_t most, int32_t running, double row_cost);
  // Whether Propose was the last time given so many tokens.
  bool Proposed(int32_t num_tokens) const { return made_for_ == num_tokens; }
  // Of Propose, if that was given so many tokens; else none.
  std::span<const int32_t> DraftsBehind(int32_t num_tokens) const {
    return Proposed(num_tokens) ? std::span<const int32_t>(drafts_) : std::span<const int32_t>();
  }
  // Keeps the first `count`.
  void Cut(size_t count) { drafts_.resize(count); }

  // What became of the first counts.drafted of them in a step.
  void Observe(const DraftCounts& counts);
  void CountRejected(int64_t kv_bytes) { counts_.kv_bytes_rejected += kv_bytes; }
  const DraftCounts& counts() const { return counts_; }

 private:
  std::unique_ptr<DraftSource> source_;  // null: no drafts
  int32_t fixed_length_;                 // 0: as of length_
  DraftLength length_;
  int32_t made_for_ = 0;
  int32_t match_ = 0;
  std::vector<int32_t> drafts_;
  DraftCounts counts_;
};

}  // namespace eta
