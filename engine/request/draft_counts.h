// What became of drafts: of an answer, or of all answers in a step.
#pragma once

#include <cstdint>

namespace eta {

struct DraftCounts {
  int64_t drafted = 0;   // tokens that steps verified
  int64_t accepted = 0;  // of them, those that the answer has
  // By how many fewer steps with the answer's own attention drew it than it has tokens.
  int64_t steps_saved = 0;
  // Keys and values that rows read behind drafts that did not hold. AttentionSums has the others.
  int64_t kv_bytes_rejected = 0;
  // Rows with sparser reads that made drafts, each in a step of its own, and the keys and values
  // that they read.
  int64_t made = 0;
  int64_t kv_bytes_made = 0;

  void Add(const DraftCounts& other) {
    drafted += other.drafted;
    accepted += other.accepted;
    steps_saved += other.steps_saved;
    kv_bytes_rejected += other.kv_bytes_rejected;
    made += other.made;
    kv_bytes_made += other.kv_bytes_made;
  }

  bool operator==(const DraftCounts&) const = default;
};

}  // namespace eta
