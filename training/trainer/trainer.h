// One training step after the other, on any backend: micro-batches, accumulated gradients, their
// sum over the ranks, clipping, AdamW. One trainer per rank, each in a thread of its own. Not
// thread-safe.
//
// A step whose loss or gradients are not finite changes no weight and no moment: it is skipped and
// counted. After max_skipped such steps in a row training stops.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "training/backend.h"
#include "training/model/training_model.h"
#include "training/optimizer/adamw.h"
#include "training/optimizer/dual_ascent.h"
#include "training/optimizer/schedules.h"
#include "training/trainer/batch_source.h"

namespace eta::training {

struct TrainerOptions {
  int32_t micro_batches = 1;  // per step and rank
  AdamWOptions adamw;
  CosineRate rate;
  LinearRamp beta{.first = 1.0, .last = 5.0, .steps = 7000};
  LinearRamp gate_strength{.first = 1.0, .last = 1.0, .steps = 0};
  SparsityWeight sparsity;
  // Set: it gives the weight instead, times the share that `sparsity` has of its peak.
  std::optional<DualAscentOptions> dual_ascent;
  double block_share = 0.0;  // w of the regulariser
  bool group_blocks = true;
  float ce_scale = 1.0f;
  float kl_scale = 1.0f;
  int32_t max_skipped = 10;  // steps in a row
};

// With the values of the parameters and the position of the data, all that a run needs to go on to
// the bit. Plain data, for a state on disk.
struct TrainerState {
  int64_t step = 0;     // steps begun so far, skipped ones included
  int64_t skipped = 0;  // steps skipped in all
  int32_t skipped_in_row = 0;
  int64_t tokens = 0;  // rows of all ranks so far
  DualAscentState dual_ascent;
  AdamWState adamw;
};

struct StepReport {
  int64_t step = 0;  // of this step, from 0
  bool skipped = false;
  double cross_entropy = 0.0;  // nats per row with a target, of all ranks
  double divergence = 0.0;     // nats per row
  double loss = 0.0;           // what is minimised, the regulariser included
  double gate_density = 0.0;   // mean gate; NaN without a gate
  double block_density = 0.0;  // mean block gate; likewise
  double gradient_norm = 0.0;  // before clipping
  double rate = 0.0;
  double beta = 0.0;
  double gate_strength = 0.0;
  double sparsity_weight = 0.0;
  int64_t tokens = 0;                     // rows of this step, of all ranks
  std::vector<float> head_gate_density;   // [L, HQ]
  std::vector<float> head_block_density;  // [L, HB]
};

class Trainer {
 public:
  // Model, teacher (null: none) and source must live as long.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainerOptions& options,
                                                         TrainingModel& model,
                                                         TrainingModel* teacher,
                                                         BatchSource& source);

  // ABORTED once max_skipped steps in a row were skipped; OUT_OF_RANGE if the source has ended;
  // other errors are the backend's.
  absl::StatusOr<StepReport> Step();

  // Of the next step, for evaluation in between.
  StepSettings Settings() const;
  // What evaluation on held-out text read; without dual ascent it changes nothing. Of every rank
  // the same reading.
  void Update(const DensityReading& reading);

  // Downloads the moments.
  TrainerState ReadState() const;
  absl::Status WriteState(const TrainerState& state);
  int64_t step() const { return step_; }
  const DualAscentState* dual_ascent() const {
    return dual_ascent_ ? &dual_ascent_->state() : nullptr;
  }

 private:
  Trainer(const TrainerOptions& options, TrainingModel& model, TrainingModel* teacher,
          BatchSource& source);
  absl::Status ReadBatches(std::vector<MicroBatch>& batches);
  void SumOverRanks(BatchLoss& loss);

  TrainerOptions options_;
  TrainingModel& model_;
  TrainingModel* teacher_;
  BatchSource& source_;
  TrainingBackend& backend_;
  std::unique_ptr<AdamW> adamw_;
  std::unique_ptr<Buffer> sums_;  // what ranks add up besides gradients
  std::optional<DualAscent> dual_ascent_;
  int64_t step_ = 0;
  int64_t skipped_ = 0;
  int32_t skipped_in_row_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace eta::training
