// The drafts of one sequence: what may follow its newest token, to be verified in one step.
//
// They come from the text at once, or from rows of the sequence with sparser reads, one step after
// the other. Drafts are of the tokens that they were made behind. Not thread-safe: the step
// thread's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "engine/batching/drafts/draft_length.h"
#include "engine/batching/drafts/draft_options.h"
#include "engine/batching/drafts/self_length.h"
#include "engine/request/request.h"

namespace eta {

// What decides how many tokens are drafted.
struct DraftCosts {
  int32_t running = 1;  // as of DraftLength
  SelfDraftCosts self;
  bool sparser = false;  // whether the sequence may make drafts with sparser reads now
  int32_t most_made = std::numeric_limits<int32_t>::max();  // by rows

  // As of DraftLength.
  double row_cost() const { return self.row / (std::max(1, running) * self.step); }
};

class Drafter {
 public:
  // No drafts come of a request that wants none. The prompt is looked at here already.
  Drafter(const DraftOptions& options, const Request& request, std::span<const int32_t> prompt);

  bool on() const { return wanted_ != Speculation::kOff; }
  // Whether rows of the sequence may make drafts.
  bool self() const { return wanted_ == Speculation::kSelf || wanted_ == Speculation::kAuto; }
  // Makes drafts, at most `most`, of what follows `tokens`, or says how many rows are to make.
  // Without memory there are none.
  void Propose(std::span<const int32_t> tokens, int32_t most, const DraftCosts& costs);
  // Whether Propose was the last time given so many tokens.
  bool Proposed(int32_t num_tokens) const { return made_for_ == num_tokens; }
  // Of what Propose was given, if that was so many tokens; else none.
  std::span<const int32_t> DraftsBehind(int32_t num_tokens) const {
    return Proposed(num_tokens) ? std::span<const int32_t>(drafts_) : std::span<const int32_t>();
  }
  // Keeps the first `count`, and no row makes more.
  void Cut(size_t count);
  // What is made is made for tokens that are not in the cache any more.
  void Restart();

  // How many drafts rows of the sequence are still to make, one after the other, behind so many
  // tokens and those that are made.
  int32_t NumToMake(int32_t num_tokens) const {
    const auto made = static_cast<int32_t>(drafts_.size());
    return Proposed(num_tokens) ? std::max(0, to_make_ - made) : 0;
  }
  bool Makes(int32_t num_tokens) const { return NumToMake(num_tokens) > 0; }
  // Whether they have made all that they were to make.
  bool HasMade(int32_t num_tokens) const {
    return Proposed(num_tokens) && to_make_ > 0 && !Makes(num_tokens);
  }
  // If rows are to make drafts and none has yet, they are to make so many, as far as Propose lets
  // them.
  void MakeAsMany(int32_t count) {
    if (to_make_ > 0 && drafts_.empty()) to_make_ = std::min(count, most_);
  }
  // The row drew this token.
  void Make(int32_t token);

  // What became of the first counts.drafted of them in a step.
  void Observe(const DraftCounts& counts);
  // What rows read beside the answer's own: behind drafts that did not hold, and to make drafts.
  void CountRejected(int64_t kv_bytes) { counts_.kv_bytes_rejected += kv_bytes; }
  void CountMade(int64_t kv_bytes) {
    ++counts_.made;
    counts_.kv_bytes_made += kv_bytes;
  }
  const DraftCounts& counts() const { return counts_; }

 private:
  Speculation wanted_;
  std::unique_ptr<DraftSource> source_;  // null: what rows draw
  int32_t fixed_length_;                 // 0: as of the lengths
  DraftLength length_;
  SelfLength self_length_;
  int32_t made_for_ = 0;
  int32_t match_ = 0;
  int32_t most_ = 0;     // that rows may make
  int32_t to_make_ = 0;  // by rows, all together; 0: the drafts are the text's
  std::vector<int32_t> drafts_;
  std::vector<int32_t> script_;  // what is taken for what rows draw; empty: nothing else
  DraftCounts counts_;
};

}  // namespace eta
