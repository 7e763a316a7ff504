// The micro-batches of one rank. They are read before the step that takes them: beside the step
// before, and so that a text that cannot be read ends the run before any rank waits for another.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "training/data/training_data.h"
#include "training/trainer/batch_source.h"

namespace eta::training {

// What is predicted and weighed.
enum class LossKind : uint8_t {
  kText,     // cross-entropy of every token
  kAnswers,  // cross-entropy of answers alone, a sequence's weighing as much as its length
};

using MicroBatches = std::deque<MicroBatch>;

// Sequences `first` to first + micro_batches * sequences - 1. Errors of TrainingData::Read.
absl::StatusOr<MicroBatches> ReadMicroBatches(TrainingData& data, LossKind loss, uint64_t first,
                                              int32_t micro_batches, int32_t sequences);

class RankSource final : public BatchSource {
 public:
  // What the next step takes.
  void Give(MicroBatches batches) { batches_ = std::move(batches); }

  // OUT_OF_RANGE: nothing was given.
  absl::Status Next(MicroBatch& batch) override;

 private:
  MicroBatches batches_;
};

}  // namespace eta::training
