// A run from its first step, or its checkpoint, to the model's folder.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "engine/base/progress_line.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/commands/rank_team.h"
#include "training/commands/run_checkpoint.h"
#include "training/commands/run_flags.h"
#include "training/evaluation/held_out.h"
#include "training/export/model_card.h"
#include "training/progress/curves.h"
#include "training/progress/run_log.h"

namespace eta::training {

struct RunPlan {
  RunFlags flags;
  TeamOptions team;  // its limits and micro-batches follow from the flags
  const Tokenizer* tokenizer = nullptr;
  std::string tokenizer_fingerprint;
  CheckpointTexts texts;                               // of the folder that is written
  std::function<std::string(float beta)> config_json;  // likewise
  std::map<std::string, std::string> settings;         // of the command, beside the flags'
  std::string method;                                  // for the model card
  std::string original;                                // name of the model that is adapted
  // Step from which on what is measured steers the sparsity weight: the gate has its strength, and
  // the model has had time to get used to it.
  int64_t steer_from = 0;
  // Before the first step, not where a run goes on; may be empty.
  std::function<absl::Status(RankTeam& team, TrainingData& data)> prepare;
};

class TrainingRun {
 public:
  explicit TrainingRun(RunPlan plan) : plan_(std::move(plan)) {}

  // Runs it. Cancelled: a signal came, and the checkpoint was written. NotAsAsked: the model is
  // written, and is not shown to keep the bounds that the sparsity weight was steered by. Other
  // errors are those of its parts; the last checkpoint that was written whole is there then.
  absl::Status Run();

 private:
  absl::Status Open();
  absl::Status OpenTexts();
  absl::StatusOr<HeldOutResult> MeasureOriginal(const HeldOut& text);
  // What records of outliers are made with while the model is in training, where the one that it
  // is served with is not known yet: the original's.
  absl::Status ReadIndexMetric();
  absl::Status Loop();
  absl::Status Step();
  absl::Status Tell(const StepReport& report, double seconds);
  // Numbers on held-out text, for the log and for the sparsity weight.
  bool EvaluationDue() const;
  absl::Status Evaluate();
  // On held_out_, with the weights that the run has now.
  absl::StatusOr<HeldOutResult> MeasureNow() const;
  absl::StatusOr<HeldOutResult> MeasureAsTrained(const HeldOut& text) const;
  absl::Status Save();
  // What came of a part of the run that changes no weight. Where it failed, the run cannot go on: a
  // checkpoint is written first, so that no step is lost, and the error says where that leaves it.
  absl::Status Saved(const absl::Status& outcome);
  absl::Status Export();
  ModelCard Card() const;  // without what is measured
  absl::Status Record(const HeldOutResult& measured, bool test);
  absl::Status WriteCurves() const;
  // The sentence of an error, with what it happened at before it.
  static absl::Status At(const std::string& what, const absl::Status& status);
  bool served() const { return plan_.team.spec.is_served(); }
  // What the card's figures are of; null: nothing is measured.
  const HeldOut* judged() const { return test_ ? test_.get() : held_out_.get(); }
  // What the model is to keep; null: nothing was asked for.
  const DualAscentOptions* bounds() const {
    const std::optional<DualAscentOptions>& asked = plan_.team.trainer.dual_ascent;
    return asked ? &*asked : nullptr;
  }
  const RunFlags& flags() const { return plan_.flags; }

  RunPlan plan_;
  std::map<std::string, std::string> settings_;
  std::unique_ptr<TrainingData> data_;
  std::unique_ptr<HeldOut> held_out_;  // null: no text to measure on
  std::unique_ptr<HeldOut> test_;      // for the card alone; null: held_out_ is for the card too
  std::unique_ptr<RankTeam> team_;
  std::optional<HeldOutResult> dense_;  // the original's, on held_out_
  std::optional<SafetensorsFile> measured_metric_;
  const TensorReader* index_metric_ = nullptr;  // null: there is no original
  RunPosition position_;
  RunHistory history_;
  std::optional<Verdict> verdict_;  // on the model that was written
  std::optional<RunLog> log_;
  ProgressLine progress_{ProgressLine::Elsewhere::kLines};
  std::chrono::steady_clock::time_point saved_;
};

}  // namespace eta::training
