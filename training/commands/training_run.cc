#include "training/commands/training_run.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/index_metric/index_metric.h"
#include "engine/base/files/input_file.h"
#include "engine/base/files/output_file.h"
#include "engine/base/status_macros.h"
#include "training/commands/stop_request.h"
#include "training/commands/write_model.h"
#include "training/export/trained_tensors.h"
#include "training/progress/progress_text.h"

namespace eta::training {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::optional<double> IfFinite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// The sentence of an error, with what it happened at before it.
absl::Status At(const char* what, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(what, ": ", std::string(status.message())));
}

}  // namespace

bool TrainingRun::served() const {
  return plan_.team.spec.gate != GateKind::kAdditive;
}

absl::Status TrainingRun::Run() {
  RETURN_IF_ERROR(flags().Check());
  RETURN_IF_ERROR(Open());
  if (plan_.team.teacher && held_out_) {
    RETURN_IF_ERROR(MeasureOriginal());
    RETURN_IF_ERROR(ReadIndexMetric());
  }
  RETURN_IF_ERROR(Loop());
  return Export();
}

absl::Status TrainingRun::Open() {
  const RunFlags& flags = plan_.flags;
  std::error_code error;
  std::filesystem::create_directories(flags.output, error);
  if (error) return At("output", absl::ErrnoToStatus(error.value(), "the folder cannot be made"));
  const bool there = std::filesystem::exists(flags.checkpoint_path(), error);
  if (there && !flags.resume) {
    return absl::AlreadyExistsError(
        "output: the folder has the checkpoint of a run; --resume goes on from it");
  }

  DataOptions data = flags.Data();
  data.cache.note = [this](const std::string& text) { progress_.Say(text); };
  ASSIGN_OR_RETURN(data_, TrainingData::Open(data, *plan_.tokenizer, plan_.tokenizer_fingerprint));
  if (!flags.held_out.empty()) {
    ASSIGN_OR_RETURN(held_out_, HeldOut::Create(flags.HeldOutData(), *plan_.tokenizer));
  }

  TeamOptions options = plan_.team;
  options.limits = {.sequences = flags.micro_batch,
                    .length = flags.sequence_tokens,
                    .recompute = flags.recompute};
  ASSIGN_OR_RETURN(team_, RankTeam::Create(options));
  settings_ = flags.Settings();
  settings_.insert(plan_.settings.begin(), plan_.settings.end());
  settings_["texts"] = data_->sha256();

  if (there) {
    ASSIGN_OR_RETURN(const TrainingCheckpoint checkpoint,
                     TrainingCheckpoint::Open(flags.checkpoint_path()));
    ASSIGN_OR_RETURN(position_, RestoreRun(checkpoint, *team_, settings_));
    progress_.Say(absl::StrCat("going on after step ", team_->trainer().step()));
  } else if (plan_.prepare) {
    RETURN_IF_ERROR(plan_.prepare(*team_, *data_));
  }
  ASSIGN_OR_RETURN(RunLog log, RunLog::Open(flags.log_path(), team_->trainer().step(), history_));
  log_.emplace(std::move(log));
  progress_.Say(absl::StrFormat(
      "%d documents, %d tokens; %.2f passes over them; %s", data_->documents(),
      data_->text_tokens(),
      data_->PassesBefore(static_cast<uint64_t>(flags.steps * team_->sequences_per_step())),
      team_->backend().description()));
  saved_ = Clock::now();
  return absl::OkStatus();
}

absl::Status TrainingRun::MeasureOriginal() {
  absl::StatusOr<HeldOutResult> measured =
      held_out_->Measure(*plan_.team.original, /*full_only=*/true, {});
  if (!measured.ok()) return At("the original", measured.status());
  progress_.Say(absl::StrFormat("original: perplexity %.4f, needles %d of %d",
                                measured->all.full_perplexity, measured->full_hits,
                                measured->needles));
  dense_ = *std::move(measured);
  return absl::OkStatus();
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

absl::Status TrainingRun::Loop() {
  while (team_->trainer().step() < flags().steps) {
    if (StopRequested()) {
      RETURN_IF_ERROR(Save());
      return absl::CancelledError(absl::StrCat("stopped after step ", team_->trainer().step(),
                                               " of ", flags().steps,
                                               "; --resume goes on from here"));
    }
    RETURN_IF_ERROR(Step());
    const int64_t step = team_->trainer().step();
    if (flags().evaluate_every > 0 && step % flags().evaluate_every == 0 && step < flags().steps) {
      RETURN_IF_ERROR(Evaluate());
    }
    if (SecondsSince(saved_) < flags().minutes * 60.0) continue;
    // The disk may have room again when the next one is due.
    const absl::Status saved = Save();
    if (!saved.ok()) progress_.Say(std::string(saved.message()));
  }
  return Save();
}

absl::Status TrainingRun::Step() {
  const Clock::time_point begin = Clock::now();
  const absl::StatusOr<StepReport> report =
      team_->Step(*data_, static_cast<uint64_t>(position_.sequences));
  if (!report.ok()) {
    // Aborted: too many steps in a row had no finite gradients. What led there is not worth saving.
    return At(absl::StrCat("step ", team_->trainer().step()).c_str(), report.status());
  }
  const double seconds = SecondsSince(begin);
  position_.sequences += team_->sequences_per_step();
  position_.seconds += seconds;
  const StepRecord* last = history_.steps.empty() ? nullptr : &history_.steps.back();
  StepRecord record = {
      .step = team_->trainer().step(),
      .tokens = position_.sequences * flags().sequence_tokens,
      .seconds = position_.seconds,
      .tokens_per_second = static_cast<double>(report->tokens) / seconds,
      .loss = plan_.team.teacher ? report->divergence : report->cross_entropy,
      .head_density = IfFinite(report->gate_density),
      .block_density = IfFinite(report->block_density),
      .gradient_norm = report->gradient_norm,
      .rate = report->rate,
      .beta = report->beta,
      .gate_strength = report->gate_strength,
      .sparsity_weight = report->sparsity_weight,
      .skipped_steps = (last != nullptr ? last->skipped_steps : 0) + (report->skipped ? 1 : 0)};
  if (plan_.team.teacher && flags().retrieval > 0.0) {
    record.answer_loss = IfFinite(report->cross_entropy);
  }
  history_.steps.push_back(record);
  progress_.Show(ProgressText(record, flags().steps), record.step >= flags().steps);
  return log_->Append(StepLine(record));
}

absl::Status TrainingRun::Evaluate() {
  const StepSettings now = team_->trainer().Settings();
  // The server knows the gate at its full strength alone.
  if (!held_out_ || !served() || now.gate_strength < 1.0f) return absl::OkStatus();
  const TrainedTensors tensors(team_->parameters(), plan_.config_json(now.beta), index_metric_);
  const absl::StatusOr<HeldOutResult> measured =
      held_out_->Measure(tensors, /*full_only=*/false, {});
  if (!measured.ok()) return At("evaluation", measured.status());
  EvaluationRecord record = {.step = team_->trainer().step(),
                             .full_perplexity = measured->all.full_perplexity,
                             .head_density = measured->all.head_density,
                             .union_density = measured->all.union_density,
                             .needles = measured->needles,
                             .full_hits = measured->full_hits,
                             .sparse_hits = measured->sparse_hits};
  if (measured->sparse) record.sparse_perplexity = measured->all.sparse_perplexity;
  history_.evaluations.push_back(record);
  progress_.Say(EvaluationText(record));
  RETURN_IF_ERROR(log_->Append(EvaluationLine(record)));
  RETURN_IF_ERROR(WriteWholeFile(flags().curves_path(), SvgCurves(history_, flags().output)));
  const bool steers = dense_ && measured->sparse && record.step >= plan_.steer_from;
  if (!steers) return absl::OkStatus();
  team_->Update(
      {.union_density = measured->all.union_density,
       .perplexity_increase = measured->all.sparse_perplexity / dense_->all.full_perplexity - 1.0});
  return absl::OkStatus();
}

absl::Status TrainingRun::Save() {
  const absl::Status saved = SaveRun(flags().checkpoint_path(), *team_, position_, settings_);
  saved_ = Clock::now();
  if (saved.ok()) return saved;
  // Whatever the disk said: another command line would not help.
  return absl::UnavailableError(
      absl::StrCat("checkpoint: it was not written, and the one before is kept: ",
                   std::string(saved.message())));
}

std::string TrainingRun::Ending() const {
  const DualAscentState* dual = team_->trainer().dual_ascent();
  if (dual == nullptr || dual->readings == 0) return "";
  switch (dual->first) {
    case DualAscentEnd::kTargetReached:
      return "What came first in training: the block union that was asked for was reached.";
    case DualAscentEnd::kQualityBound:
      return "What came first in training: the bound on perplexity, before the block union that "
             "was "
             "asked for.";
    case DualAscentEnd::kSteering:
      break;
  }
  return "Training ended before the block union that was asked for was reached.";
}

absl::Status TrainingRun::Export() {
  const auto beta = static_cast<float>(team_->trainer().Settings().beta);
  ModelToWrite model = {.folder = flags().model_path(),
                        .parameters = &team_->parameters(),
                        .config_json = plan_.config_json(beta),
                        .texts = &plan_.texts,
                        .held_out = served() ? held_out_.get() : nullptr,
                        .threads = flags().backend.num_threads};
  model.card.name = std::filesystem::path(flags().output).lexically_normal().filename().string();
  model.card.original = plan_.original;
  model.card.config = plan_.team.spec.config;
  model.card.method = plan_.method;
  model.card.dense = dense_;
  model.card.ending = Ending();
  for (const std::string& text : flags().texts) {
    model.card.texts.push_back(text.substr(text.rfind('/') + 1));
  }
  model.card.facts = {
      {"steps", absl::StrCat(team_->trainer().step())},
      {"tokens", absl::StrCat(position_.sequences * flags().sequence_tokens)},
      {"sequence", absl::StrCat(flags().sequence_tokens, " tokens")},
      {"batch", absl::StrCat(flags().batch, " sequences")},
      {"learning rate", absl::StrFormat("%g", flags().learning_rate)},
      {"retrieval tasks", absl::StrFormat("%g of the sequences", flags().retrieval)},
      {"seed", absl::StrCat(flags().seed)},
      {"training time", absl::StrFormat("%.0f s", position_.seconds)},
      {"backend", team_->backend().description()}};
  const absl::StatusOr<std::optional<HeldOutResult>> measured = WriteModel(model);
  if (!measured.ok()) return At("model", measured.status());
  if (*measured) {
    EvaluationRecord record = {.step = team_->trainer().step(),
                               .full_perplexity = (*measured)->all.full_perplexity,
                               .head_density = (*measured)->all.head_density,
                               .union_density = (*measured)->all.union_density,
                               .needles = (*measured)->needles,
                               .full_hits = (*measured)->full_hits,
                               .sparse_hits = (*measured)->sparse_hits};
    if ((*measured)->sparse) record.sparse_perplexity = (*measured)->all.sparse_perplexity;
    history_.evaluations.push_back(record);
    progress_.Say(EvaluationText(record));
    RETURN_IF_ERROR(log_->Append(EvaluationLine(record)));
  }
  RETURN_IF_ERROR(WriteWholeFile(flags().curves_path(), SvgCurves(history_, flags().output)));
  if (!model.card.ending.empty()) progress_.Say(model.card.ending);
  progress_.Say(absl::StrCat("the model is in ", flags().model_path()));
  return absl::OkStatus();
}

}  // namespace eta::training
