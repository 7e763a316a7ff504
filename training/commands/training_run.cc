#include "training/commands/training_run.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/calibrate/perplexity_increase.h"
#include "calibration/evaluation/runtime/program.h"
#include "engine/base/status_macros.h"
#include "training/commands/stop_request.h"
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

// A failed run, whatever a part of it said: another command line would not help.
absl::Status Failed(const absl::Status& what, const std::string& remains) {
  return absl::UnavailableError(absl::StrCat(std::string(what.message()), "; ", remains));
}

}  // namespace

absl::Status TrainingRun::At(const std::string& what, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(what, ": ", std::string(status.message())));
}

absl::Status TrainingRun::Run() {
  RETURN_IF_ERROR(flags().Check());
  RETURN_IF_ERROR(Open());
  if (plan_.team.teacher && held_out_) {
    ASSIGN_OR_RETURN(dense_, MeasureOriginal(*held_out_));
    RETURN_IF_ERROR(ReadIndexMetric());
  }
  RETURN_IF_ERROR(Loop());
  const absl::Status exported = Export();
  if (!exported.ok()) {
    return Failed(exported, "the checkpoint has all steps, and --resume writes the model again");
  }
  if (!verdict_ || verdict_->kept()) return absl::OkStatus();
  return NotAsAsked(absl::StrCat("the model is written. ", VerdictText(*verdict_)));
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
  RETURN_IF_ERROR(OpenTexts());

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

absl::Status TrainingRun::OpenTexts() {
  if (!flags().held_out.empty()) {
    ASSIGN_OR_RETURN(held_out_, HeldOut::Create(flags().HeldOutData(), *plan_.tokenizer));
  }
  if (!flags().test.empty()) {
    ASSIGN_OR_RETURN(test_, HeldOut::Create(flags().TestData(), *plan_.tokenizer));
  }
  if (bounds() != nullptr && judged() != nullptr && judged()->tokens() < kMinVerdictTokens) {
    progress_.Say(absl::StrCat("the model will be unverified: it is judged over ",
                               judged()->tokens(), " tokens, and a verdict takes ",
                               kMinVerdictTokens));
  }
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
    if (EvaluationDue()) RETURN_IF_ERROR(Saved(Evaluate()));
    RETURN_IF_ERROR(Step());
    if (SecondsSince(saved_) < flags().minutes * 60.0) continue;
    // The disk may have room again when the next one is due.
    const absl::Status saved = Save();
    if (!saved.ok()) progress_.Say(std::string(saved.message()));
  }
  return Save();
}

absl::Status TrainingRun::Step() {
  const Clock::time_point begin = Clock::now();
  const absl::Status dealt = team_->Deal(*data_, static_cast<uint64_t>(position_.sequences));
  if (!dealt.ok()) return Saved(At("text", dealt));
  const absl::StatusOr<StepReport> report = team_->Step();
  if (!report.ok()) {
    // Aborted: too many steps in a row had no finite gradients. What led there is not worth saving.
    return At(absl::StrCat("step ", team_->trainer().step()), report.status());
  }
  const double seconds = SecondsSince(begin);
  position_.sequences += team_->sequences_per_step();
  position_.seconds += seconds;
  return Saved(Tell(*report, seconds));
}

absl::Status TrainingRun::Tell(const StepReport& report, double seconds) {
  const StepRecord* last = history_.steps.empty() ? nullptr : &history_.steps.back();
  StepRecord record = {
      .step = team_->trainer().step(),
      .tokens = position_.sequences * flags().sequence_tokens,
      .seconds = position_.seconds,
      .tokens_per_second = static_cast<double>(report.tokens) / seconds,
      .loss = plan_.team.teacher ? report.divergence : report.cross_entropy,
      .head_density = IfFinite(report.gate_density),
      .block_density = IfFinite(report.block_density),
      .gradient_norm = report.gradient_norm,
      .rate = report.rate,
      .beta = report.beta,
      .gate_strength = report.gate_strength,
      .sparsity_weight = report.sparsity_weight,
      .skipped_steps = (last != nullptr ? last->skipped_steps : 0) + (report.skipped ? 1 : 0)};
  if (plan_.team.teacher && flags().retrieval > 0.0) {
    record.answer_loss = IfFinite(report.cross_entropy);
  }
  history_.steps.push_back(record);
  progress_.Show(ProgressText(record, flags().steps), record.step >= flags().steps);
  return log_->Append(StepLine(record));
}

absl::Status TrainingRun::Save() {
  const absl::Status saved = SaveRun(flags().checkpoint_path(), team_->trainer(),
                                     team_->parameters(), position_, settings_);
  saved_ = Clock::now();
  if (saved.ok()) return saved;
  return absl::UnavailableError(
      absl::StrCat("checkpoint: it was not written, and the one before is kept: ",
                   std::string(saved.message())));
}

absl::Status TrainingRun::Saved(const absl::Status& outcome) {
  if (outcome.ok()) return outcome;
  const absl::Status saved = Save();
  if (!saved.ok()) return Failed(outcome, std::string(saved.message()));
  return Failed(outcome, absl::StrCat("a checkpoint was written after step ",
                                      team_->trainer().step(), ", and --resume goes on from it"));
}

}  // namespace eta::training
