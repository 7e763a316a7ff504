// The ranks of a run: one backend, model and trainer each, which take every step together.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/tensor_source.h"
#include "training/backend.h"
#include "training/backends/make_backends.h"
#include "training/commands/rank_source.h"
#include "training/model/training_model.h"
#include "training/trainer/trainer.h"

namespace eta::training {

struct TeamOptions {
  TrainingBackendOptions backend;
  ModelSpec spec;
  TrainedPart trained = TrainedPart::kAll;
  InitOptions init;
  const TensorSource* original = nullptr;  // whose weights the model starts with; null: random
  bool teacher = false;                    // the original, frozen, is what the model is to be like
  LossKind loss = LossKind::kText;
  ModelLimits limits;  // of one micro-batch
  TrainerOptions trainer;
};

// Not thread-safe.
class RankTeam {
 public:
  // Errors of the backends and of Parameters::Load. RESOURCE_EXHAUSTED where a device has no room.
  static absl::StatusOr<std::unique_ptr<RankTeam>> Create(const TeamOptions& options);

  int32_t ranks() const { return static_cast<int32_t>(ranks_.size()); }
  // Sequences of a step, over all ranks.
  int64_t sequences_per_step() const;

  // Gives the ranks the data of a step whose first sequence is number `first`. The data of the step
  // after it is read meanwhile: nobody else may read `data` from here on, and it must outlive the
  // team. Errors of TrainingData::Read, which leave every rank as it was.
  absl::Status Deal(TrainingData& data, uint64_t first);
  // The step that was dealt. Errors of Trainer::Step; nothing of a rank is worth saving then. Where
  // one rank fails and the others wait for it for ever, the process ends with exit code 1: what the
  // last checkpoint has is safe.
  absl::StatusOr<StepReport> Step();
  void Update(const DensityReading& reading);

  // Of rank 0; those of the others are the same to the bit.
  Trainer& trainer() const { return *ranks_.front().trainer; }
  TrainingModel& model() const { return *ranks_.front().model; }
  Parameters& parameters() const { return *ranks_.front().parameters; }
  TrainingBackend& backend() const { return *ranks_.front().backend; }

  // Gives every rank values of a parameter, or a state.
  absl::Status Write(std::string_view name, std::span<const float> values);
  absl::Status WriteState(const TrainerState& state);

 private:
  struct Rank {
    std::unique_ptr<TrainingBackend> backend;
    std::unique_ptr<Parameters> parameters;
    std::unique_ptr<TrainingModel> model;
    std::unique_ptr<Parameters> teacher_parameters;  // null: no teacher
    std::unique_ptr<TrainingModel> teacher;
    std::unique_ptr<RankSource> source;
    std::unique_ptr<Trainer> trainer;
  };

  explicit RankTeam(const TeamOptions& options) : options_(options) {}
  using StepBatches = std::vector<MicroBatches>;  // by rank

  absl::Status Begin(Rank& rank) const;
  absl::StatusOr<StepBatches> Read(TrainingData& data, uint64_t first) const;
  // Those that were read ahead, if they are the ones.
  absl::StatusOr<StepBatches> Take(TrainingData& data, uint64_t first);
  absl::StatusOr<StepReport> StepTogether();

  TeamOptions options_;
  std::vector<Rank> ranks_;
  uint64_t ahead_first_ = 0;
  std::future<absl::StatusOr<StepBatches>> ahead_;  // last: it uses the others
};

}  // namespace eta::training
