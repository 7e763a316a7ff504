// What a run measures, on the way and at its end, and the model that it leaves.
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/index_metric/index_metric.h"
#include "engine/base/files/output_file.h"
#include "engine/base/status_macros.h"
#include "training/commands/training_run.h"
#include "training/commands/write_model.h"
#include "training/export/trained_tensors.h"
#include "training/progress/progress_text.h"

namespace eta::training {

absl::StatusOr<HeldOutResult> TrainingRun::MeasureOriginal(const HeldOut& text) {
  absl::StatusOr<HeldOutResult> measured =
      text.Measure(*plan_.team.original, /*full_only=*/true, {});
  if (!measured.ok()) return At("the original", measured.status());
  progress_.Say(absl::StrFormat(
      "original: %s perplexity %.4f, needles %d of %d", &text == test_.get() ? "test" : "held-out",
      measured->all.full_perplexity, measured->full_hits, measured->needles));
  return measured;
}

absl::Status TrainingRun::ReadIndexMetric() {
  const TensorSource& original = *plan_.team.original;
  index_metric_ = original.index_metric();
  if (index_metric_ != nullptr) return absl::OkStatus();
  const std::string path = flags().output + "/index_metric.safetensors";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    progress_.Say("measuring the original's index metric");
    const absl::Status measured = MeasureIndexMetric(
        original, held_out_->windows(),
        {.backend = {.name = "cpu", .num_threads = flags().backend.num_threads}, .progress = {}},
        path);
    if (!measured.ok()) return At("the original's index metric", measured);
  }
  absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(path);
  if (!opened.ok()) return At("the original's index metric", opened.status());
  measured_metric_.emplace(*std::move(opened));
  index_metric_ = &*measured_metric_;
  return absl::OkStatus();
}

bool TrainingRun::EvaluationDue() const {
  const int64_t step = team_->trainer().step();
  if (flags().evaluate_every == 0 || step == 0 || step % flags().evaluate_every != 0) return false;
  // The server knows the gate at its full strength alone.
  return held_out_ && step > position_.measured &&
         team_->trainer().Settings().gate_strength >= 1.0f;
}

absl::StatusOr<HeldOutResult> TrainingRun::MeasureAsTrained(const HeldOut& text) const {
  return text.MeasureAsTrained(plan_.team.spec, team_->parameters(), team_->trainer().Settings());
}

absl::StatusOr<HeldOutResult> TrainingRun::MeasureNow() const {
  if (!served()) return MeasureAsTrained(*held_out_);
  const TrainedTensors tensors(team_->parameters(),
                               plan_.config_json(team_->trainer().Settings().beta), index_metric_);
  return held_out_->Measure(tensors, /*full_only=*/false, {});
}

absl::Status TrainingRun::Evaluate() {
  const absl::StatusOr<HeldOutResult> measured = MeasureNow();
  if (!measured.ok()) return At("evaluation", measured.status());
  const int64_t step = team_->trainer().step();
  // First: what comes after may fail, and a run that goes on then does not measure again.
  if (dense_ && measured->sparse && step >= plan_.steer_from) {
    team_->Update({.union_density = measured->all.union_density,
                   .perplexity_increase =
                       measured->all.sparse_perplexity / dense_->all.full_perplexity - 1.0});
  }
  position_.measured = step;
  RETURN_IF_ERROR(Record(*measured, /*test=*/false));
  return WriteCurves();
}

absl::Status TrainingRun::Record(const HeldOutResult& measured, bool test) {
  EvaluationRecord record = {.step = team_->trainer().step(),
                             .test = test,
                             .as_trained = measured.as_trained,
                             .full_perplexity = measured.all.full_perplexity,
                             .head_density = measured.all.head_density,
                             .union_density = measured.all.union_density,
                             .needles = measured.needles,
                             .full_hits = measured.full_hits,
                             .sparse_hits = measured.sparse_hits};
  if (measured.sparse) record.sparse_perplexity = measured.all.sparse_perplexity;
  if (measured.caches) {
    record.reads = measured.caches->reads;
    record.holds = measured.caches->holds;
  }
  history_.evaluations.push_back(record);
  progress_.Say(EvaluationText(record));
  return log_->Append(EvaluationLine(record));
}

absl::Status TrainingRun::WriteCurves() const {
  return WriteWholeFile(flags().curves_path(), SvgCurves(history_, flags().output));
}

ModelCard TrainingRun::Card() const {
  ModelCard card;
  card.name = std::filesystem::path(flags().output).lexically_normal().filename().string();
  card.original = plan_.original;
  card.config = plan_.team.spec.config;
  card.method = plan_.method;
  card.served = served();
  card.tested = test_ != nullptr;
  card.dense = dense_;
  for (const std::string& text : flags().texts) {
    card.texts.push_back(text.substr(text.rfind('/') + 1));
  }
  card.facts = {{"steps", absl::StrCat(team_->trainer().step())},
                {"tokens", absl::StrCat(position_.sequences * flags().sequence_tokens)},
                {"sequence", absl::StrCat(flags().sequence_tokens, " tokens")},
                {"batch", absl::StrCat(flags().batch, " sequences")},
                {"learning rate", absl::StrFormat("%g", flags().learning_rate)},
                {"retrieval tasks", absl::StrFormat("%g of the sequences", flags().retrieval)},
                {"seed", absl::StrCat(flags().seed)},
                {"training time", absl::StrFormat("%.0f s", position_.seconds)},
                {"backend", team_->backend().description()}};
  return card;
}

absl::Status TrainingRun::Export() {
  ModelToWrite model = {.folder = flags().model_path(),
                        .parameters = &team_->parameters(),
                        .config_json = plan_.config_json(team_->trainer().Settings().beta),
                        .texts = &plan_.texts,
                        .held_out = served() ? held_out_.get() : nullptr,
                        .measured = judged(),
                        .asked = bounds(),
                        .threads = flags().backend.num_threads,
                        .card = Card()};
  if (!served()) {
    model.as_trained = [this](const HeldOut& text) { return MeasureAsTrained(text); };
  }
  if (plan_.team.teacher && test_) {
    ASSIGN_OR_RETURN(model.card.dense, MeasureOriginal(*test_));
  }
  const absl::StatusOr<ModelCard> card = WriteModel(std::move(model));
  if (!card.ok()) return At("model", card.status());
  verdict_ = card->verdict;
  if (card->measured) RETURN_IF_ERROR(Record(*card->measured, card->tested));
  RETURN_IF_ERROR(WriteCurves());
  if (verdict_) progress_.Say(VerdictText(*verdict_));
  progress_.Say(absl::StrCat("the model is in ", flags().model_path()));
  return absl::OkStatus();
}

}  // namespace eta::training
