#include "service/etactl/calibrate/calibrate.h"

#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/progress_line.h"
#include "engine/base/status_macros.h"
#include "service/etactl/attention_options.h"
#include "service/etactl/calibrate/calibrate_call.h"
#include "service/etactl/connection.h"
#include "service/etactl/error.h"
#include "service/etactl/input.h"
#include "service/etactl/json.h"
#include "service/etactl/view/profile_text.h"
#include "service/etactl/view/progress_text.h"
#include "service/etactl/view/terminal.h"
#include "service/wire/attention_message.h"

namespace eta::ctl {
namespace {

// Far more than a server accepts by default, far less than a client's memory.
constexpr int64_t kMaxSampleBytes = 256 << 20;

// Shows a bar on a terminal. Elsewhere it prints a line when a phase begins and at each quarter of
// it.
class ProgressDisplay {
 public:
  void Show(const v1::CalibrationProgress& progress) {
    const int32_t total = progress.sequences_total();
    if (bar_.terminal()) {
      if (total <= 0) return;
      bar_.Show(ProgressText(PhaseName(progress.phase()), progress.sequences_done(), total,
                             DescribeSpeed(progress)),
                /*at_once=*/true);
      return;
    }
    const int64_t quarter = total > 0 ? int64_t{4} * progress.sequences_done() / total : 0;
    if (progress.phase() == phase_ && quarter <= quarter_) return;
    phase_ = progress.phase();
    quarter_ = quarter;
    std::fprintf(stderr, "%s\n", DescribeProgress(progress).c_str());
  }
  void Clear() { bar_.Clear(); }

 private:
  ProgressLine bar_;
  v1::CalibrationPhase phase_ = v1::CALIBRATION_PHASE_UNSPECIFIED;
  int64_t quarter_ = 0;
};

absl::Status FillLabels(const CalibrateFlags& flags, v1::CalibrateRequest* request) {
  for (const std::string& entry : flags.labels) {
    const std::pair<std::string, std::string> label =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (entry.find('=') == std::string::npos || label.first.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--label: not of the form KEY=VALUE: ", entry));
    }
    if (!request->mutable_labels()->insert({label.first, label.second}).second) {
      return absl::InvalidArgumentError(absl::StrCat("--label: given twice: ", label.first));
    }
  }
  return absl::OkStatus();
}

void AddPromiseOptions(CLI::App* command, CalibrateFlags* flags) {
  command
      ->add_option("--min_retrieval", flags->min_retrieval,
                   "Refuse unless this share of the needles that full attention finds is found; "
                   "default: all of them")
      ->group("Promises");
  command
      ->add_flag("--allow_loss", flags->allow_loss,
                 "Store a profile even if it costs more than 3 % perplexity, or a needle, or if "
                 "the text held out is too short to tell")
      ->group("Promises");
}

void AddStoringOptions(CLI::App* command, CalibrateFlags* flags) {
  CLI::Option* create =
      command->add_flag("--create_only", flags->create_only, "Refuse if the name is taken")
          ->group("Storing");
  command
      ->add_option("--expected_version", flags->expected_version,
                   "Refuse unless this is the newest version")
      ->excludes(create)
      ->group("Storing");
  command
      ->add_option("--request_id", flags->request_id,
                   "Your key for this call: repeated with the same samples it stores nothing "
                   "twice, and joins the calibration that runs; default: one of its own")
      ->group("Storing");
  command
      ->add_flag("--stage", flags->stage,
                 "Store the version, but do not make it the newest: `profiles promote` does")
      ->group("Storing");
}

}  // namespace

CLI::App* AddCalibrateCommand(CLI::App& app, CalibrateFlags* flags) {
  CLI::App* command = app.add_subcommand(
      "calibrate", "Make a profile of frozen thresholds from samples of a domain");
  AddDeadlineOption(command, &flags->deadline_seconds, "1800");
  command->add_option("NAME", flags->name, "The profile; a taken name gets a new version")
      ->required();
  command
      ->add_option("--samples", flags->samples,
                   "Files, or folders of them: *.txt, a document each; *.jsonl, one per line with "
                   "text or token_ids; lines with the same document are one")
      ->required();
  command->add_option("--label", flags->labels, "KEY=VALUE, kept with the profile; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--model", flags->model, "Must be the model that is served");
  command->add_option(
      "--target", flags->target,
      "dynamic-union-density[=PERCENT], union-density=SHARE, head-density=SHARE, "
      "max-perplexity-increase=PERCENT, retained-mass=SHARE or match-dynamic; default: what "
      "dynamic thresholds read, at most 0.5 % above their perplexity; of a model that predicts "
      "none max-perplexity-increase=0.5");
  command->add_option("--z_recall", flags->z_recall,
                      "A z per head, so that this share of the keys that matter is read; "
                      "default: one z for all");
  command->add_option("--held_out", flags->held_out,
                      "Share of the text to verify on, in whole documents; default 0.25");
  command->add_option("--sequence_tokens", flags->sequence_tokens,
                      "Longer samples are cut into sequences of this length; default 2048");
  AddAttentionSettings(command, "Options", /*of_profiles=*/true, &flags->settings);
  AddPromiseOptions(command, flags);
  AddStoringOptions(command, flags);
  command->add_flag("--json", flags->json,
                    "Every event as one JSON object per line; the last is the profile");
  return command;
}

absl::StatusOr<v1::CalibrationTarget> ParseTarget(const std::string& text) {
  const std::pair<std::string, std::string> pair = absl::StrSplit(text, absl::MaxSplits('=', 1));
  std::string kind = pair.first;
  std::replace(kind.begin(), kind.end(), '_', '-');
  v1::CalibrationTarget target;
  if (kind == "match-dynamic") {
    if (text.find('=') != std::string::npos) {
      return absl::InvalidArgumentError("--target: match-dynamic takes no value");
    }
    target.mutable_match_dynamic();
    return target;
  }
  if (text.find('=') == std::string::npos && kind == "dynamic-union-density") {
    target.mutable_dynamic_union_density();
    return target;
  }
  std::string number = pair.second;
  const bool dynamic = kind == "dynamic-union-density";
  const bool percent = dynamic || kind == "max-perplexity-increase";
  if (percent && !number.empty() && number.back() == '%') number.pop_back();
  double value = 0.0;
  const bool read = absl::SimpleAtod(number, &value);
  if (read && kind == "head-density") {
    target.set_head_density(value);
  } else if (read && kind == "union-density") {
    target.set_union_density(value);
  } else if (read && kind == "retained-mass") {
    target.set_retained_mass(value);
  } else if (read && dynamic) {
    target.mutable_dynamic_union_density()->set_max_perplexity_increase(value);
  } else if (read && percent) {
    target.set_max_perplexity_increase(value);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--target: not dynamic-union-density[=PERCENT], union-density=SHARE, "
                     "head-density=SHARE, max-perplexity-increase=PERCENT, retained-mass=SHARE or "
                     "match-dynamic: ",
                     text));
  }
  return target;
}

absl::StatusOr<CalibrateCall> MakeCalibrateCall(const CalibrateFlags& flags) {
  CalibrateCall call;
  v1::CalibrateRequest& request = call.request;
  if (flags.model) request.set_model(*flags.model);
  request.set_name(flags.name);
  if (flags.target) {
    ASSIGN_OR_RETURN(*request.mutable_target(), ParseTarget(*flags.target));
  }
  RETURN_IF_ERROR(FillLabels(flags, &request));
  if (flags.held_out) request.set_held_out(*flags.held_out);
  if (flags.z_recall) request.set_z_recall(*flags.z_recall);
  if (flags.sequence_tokens) request.set_sequence_tokens(*flags.sequence_tokens);
  WriteSettings(flags.settings, request);
  if (flags.min_retrieval) request.set_min_retrieval(*flags.min_retrieval);
  if (flags.allow_loss) request.set_allow_loss(true);
  if (flags.create_only) request.set_expected_version(0);
  if (flags.expected_version) request.set_expected_version(*flags.expected_version);
  if (flags.request_id) request.set_request_id(*flags.request_id);
  if (flags.stage) request.set_stage(true);
  ASSIGN_OR_RETURN(std::vector<Sample> samples, ReadSamples(flags.samples, kMaxSampleBytes));
  for (Sample& sample : samples) {
    call.origins.push_back(sample.origin);
    v1::CalibrationSample* added = request.add_samples();
    added->set_document(std::move(sample.document));
    if (sample.token_ids.empty()) {
      added->set_text(std::move(sample.text));
    } else {
      added->mutable_token_ids()->mutable_ids()->Add(sample.token_ids.begin(),
                                                     sample.token_ids.end());
    }
  }
  return call;
}

std::string DescribeRefusedSample(const std::string& field,
                                  const std::vector<std::string>& origins) {
  constexpr char kSamples[] = "samples[";
  const size_t begin = sizeof(kSamples) - 1;
  const size_t end = field.find(']');
  size_t index = 0;
  if (field.rfind(kSamples, 0) != 0 || end == std::string::npos ||
      !absl::SimpleAtoi(field.substr(begin, end - begin), &index) || index >= origins.size()) {
    return "";
  }
  return absl::StrCat("samples[", index, "] is ", origins[index]);
}

int RunCalibrate(const ServerFlags& server, const CalibrateFlags& flags) {
  absl::StatusOr<CalibrateCall> call = MakeCalibrateCall(flags);
  if (!call.ok()) {
    std::fprintf(stderr, "etactl: %s\n", std::string(call.status().message()).c_str());
    return kUsage;
  }

  ProgressDisplay display;
  const CalibrateEvents events = {
      .on_message =
          [&](const v1::CalibrateResponse& message) {
            if (flags.json) std::fputs(JsonLine(message).c_str(), stdout);
            std::fflush(stdout);
            if (!flags.json && message.has_progress()) display.Show(message.progress());
          },
      .on_broken =
          [&](const grpc::Status& broken, std::chrono::milliseconds wait) {
            display.Clear();
            std::fprintf(stderr, "etactl: %s; coming back to the calibration in %s\n",
                         DescribeError(broken).c_str(),
                         ReadableSeconds(static_cast<double>(wait.count()) * 1e-3).c_str());
          }};
  const CalibrateEnd end = CallCalibrate(server, call->request, flags.deadline_seconds, events);
  const grpc::Status& status = end.status;
  const std::optional<v1::Profile>& profile = end.profile;
  display.Clear();
  if (profile.has_value() && !flags.json) {
    std::fputs((DescribeProfile(*profile) + "\n" + Verdict(*profile) + "\n").c_str(), stdout);
    if (end.lacks_index_metric) std::printf("%s\n", kLacksIndexMetric);
  }
  std::fflush(stdout);
  if (end.interrupted) return kInterrupted;
  if (!status.ok()) {
    const int code = Report(status, flags.json);
    const std::string sample = DescribeRefusedSample(RefusedField(status), call->origins);
    if (!sample.empty()) std::fprintf(stderr, "etactl: %s\n", WithoutControls(sample).c_str());
    return code;
  }
  if (!profile.has_value()) {
    std::fprintf(stderr, "etactl: the server ended the call without a profile\n");
    return kServerFailure;
  }
  if (std::ferror(stdout) != 0) {
    std::fprintf(stderr, "etactl: cannot write to standard output; the profile is stored\n");
    return kLocalError;
  }
  return kOk;
}

}  // namespace eta::ctl
