// Where a trainer's sequences come from.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "training/model/training_model.h"

namespace eta::training {

// The rows of one micro-batch, owned.
struct MicroBatch {
  int32_t sequences = 0;
  int32_t length = 0;
  std::vector<int32_t> tokens;    // [B, T]
  std::vector<int32_t> targets;   // [B, T]; -1: none
  std::vector<float> ce_weights;  // [B, T], or empty: 1 everywhere
  std::vector<float> kl_weights;  // [B, T], or empty: 1 everywhere

  SequenceBatch view() const {
    return {sequences, length, tokens, targets, ce_weights, kl_weights};
  }
};

// Not thread-safe. Its position is saved and set by who owns it, not by the trainer.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // The next micro-batch of this rank. OUT_OF_RANGE: there are no more.
  virtual absl::Status Next(MicroBatch& batch) = 0;
};

}  // namespace eta::training
