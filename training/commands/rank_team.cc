#include "training/commands/rank_team.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/mutex.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_config.h"

namespace eta::training {
namespace {

constexpr std::chrono::seconds kPatience{20};

// Results of threads that may never come.
class Results {
 public:
  explicit Results(size_t count) : results_(count) {}

  void Put(size_t rank, absl::StatusOr<StepReport> result) {
    {
      const MutexLock lock(mutex_);
      failed_ = failed_ || !result.ok();
      results_[rank] = std::move(result);
      ++done_;
    }
    changed_.NotifyAll();
  }

  // Waits for all of them. Once one is an error, false if the others do not come soon.
  bool Await() {
    MutexLock lock(mutex_);
    const auto all = [this]() REQUIRES(mutex_) { return done_ == results_.size(); };
    changed_.Wait(lock, [this, all]() REQUIRES(mutex_) { return failed_ || all(); });
    return changed_.WaitFor(lock, kPatience, all);
  }

  // The first error, or rank 0's report.
  absl::StatusOr<StepReport> First() {
    const MutexLock lock(mutex_);
    for (const auto& result : results_) {
      if (result && !result->ok()) return result->status();
    }
    return *std::move(results_.front());
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::optional<absl::StatusOr<StepReport>>> results_ GUARDED_BY(mutex_);
  size_t done_ GUARDED_BY(mutex_) = 0;
  bool failed_ GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankTeam>> RankTeam::Create(const TeamOptions& options) {
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<TrainingBackend>> backends,
                   MakeTrainingBackends(options.backend));
  std::unique_ptr<RankTeam> team(new RankTeam(options));
  for (std::unique_ptr<TrainingBackend>& backend : backends) {
    Rank& rank = team->ranks_.emplace_back();
    rank.backend = std::move(backend);
    RETURN_IF_ERROR(team->Begin(rank));
  }
  return team;
}

absl::Status RankTeam::Begin(Rank& rank) const {
  ASSIGN_OR_RETURN(rank.parameters,
                   Parameters::Create(options_.spec, options_.trained, *rank.backend));
  RETURN_IF_ERROR(options_.original == nullptr
                      ? rank.parameters->Initialise(options_.init)
                      : rank.parameters->Load(*options_.original, options_.init));
  ASSIGN_OR_RETURN(rank.model,
                   TrainingModel::Create(options_.spec, *rank.parameters, options_.limits));

  if (options_.teacher) {
    ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(options_.original->config_json()));
    const ModelSpec spec = SpecOf(config);
    ASSIGN_OR_RETURN(rank.teacher_parameters,
                     Parameters::Create(spec, TrainedPart::kNothing, *rank.backend));
    RETURN_IF_ERROR(rank.teacher_parameters->Load(*options_.original, options_.init));
    ModelLimits limits = options_.limits;
    limits.backward = false;
    ASSIGN_OR_RETURN(rank.teacher, TrainingModel::Create(spec, *rank.teacher_parameters, limits));
  }

  rank.source = std::make_unique<RankSource>();
  ASSIGN_OR_RETURN(rank.trainer, Trainer::Create(options_.trainer, *rank.model, rank.teacher.get(),
                                                 *rank.source));
  return absl::OkStatus();
}

int64_t RankTeam::sequences_per_step() const {
  return int64_t{ranks()} * options_.trainer.micro_batches * options_.limits.sequences;
}

absl::StatusOr<RankTeam::StepBatches> RankTeam::Read(TrainingData& data, uint64_t first) const {
  const int32_t micro_batches = options_.trainer.micro_batches;
  const int32_t sequences = options_.limits.sequences;
  StepBatches step;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    ASSIGN_OR_RETURN(MicroBatches batches,
                     ReadMicroBatches(data, options_.loss, first, micro_batches, sequences));
    step.push_back(std::move(batches));
    first += static_cast<uint64_t>(micro_batches) * static_cast<uint64_t>(sequences);
  }
  return step;
}

absl::StatusOr<RankTeam::StepBatches> RankTeam::Take(TrainingData& data, uint64_t first) {
  if (!ahead_.valid()) return Read(data, first);
  absl::StatusOr<StepBatches> step = ahead_.get();
  return ahead_first_ == first ? std::move(step) : Read(data, first);
}

absl::Status RankTeam::Deal(TrainingData& data, uint64_t first) {
  ASSIGN_OR_RETURN(StepBatches batches, Take(data, first));
  for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i].source->Give(std::move(batches[i]));
  ahead_first_ = first + static_cast<uint64_t>(sequences_per_step());
  ahead_ = std::async(std::launch::async,
                      [this, &data, next = ahead_first_] { return Read(data, next); });
  return absl::OkStatus();
}

absl::StatusOr<StepReport> RankTeam::Step() {
  return ranks_.size() == 1 ? ranks_.front().trainer->Step() : StepTogether();
}

absl::StatusOr<StepReport> RankTeam::StepTogether() {
  Results results(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    threads.emplace_back([this, &results, i] { results.Put(i, ranks_[i].trainer->Step()); });
  }
  if (!results.Await()) {
    // A rank that waits in a sum over all ranks cannot be called back.
    const absl::StatusOr<StepReport> first = results.First();
    std::fprintf(stderr, "eta-train: a rank failed: %s\n",
                 std::string(first.status().message()).c_str());
    std::_Exit(1);
  }
  for (std::thread& thread : threads) thread.join();
  return results.First();
}

void RankTeam::Update(const DensityReading& reading) {
  for (Rank& rank : ranks_) rank.trainer->Update(reading);
}

absl::Status RankTeam::Write(std::string_view name, std::span<const float> values) {
  for (Rank& rank : ranks_) RETURN_IF_ERROR(rank.parameters->Write(name, values));
  return absl::OkStatus();
}

absl::Status RankTeam::WriteState(const TrainerState& state) {
  for (Rank& rank : ranks_) RETURN_IF_ERROR(rank.trainer->WriteState(state));
  return absl::OkStatus();
}

}  // namespace eta::training
