// eta-eval calibrate: makes a profile in a file from texts of a domain, without a server.

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "calibration/calibrate/calibration_job.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/commands/calibrate_report.h"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/commands/progress_bar.h"
#include "calibration/evaluation/runtime/program.h"
#include "calibration/evaluation/runtime/runtime_flags.h"
#include "calibration/evaluation/text/text_source.h"
#include "calibration/profiles/profile_json.h"
#include "calibration/solvers/equal_documents.h"
#include "calibration/solvers/sample_split.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/front/engine.h"

namespace eta {
namespace {

struct CalibrateCommand {
  RuntimeFlags runtime;
  std::vector<std::string> texts;
  int32_t sequences = 16;
  int32_t sequence_tokens = kDefaultSequenceTokens;
  double held_out = 0.25;
  std::optional<double> head_density;
  std::optional<double> union_density;
  std::optional<double> max_perplexity_increase;
  std::optional<double> dynamic_union_density;
  std::optional<double> retained_mass;
  bool match_dynamic = false;
  std::optional<double> z_recall;
  AttentionSettings settings;
  std::optional<double> min_retrieval;
  bool allow_loss = false;
  std::vector<std::string> labels;
  std::string name = "profile";
  std::string output;
  bool json = false;

  void Register(CLI::App& command);
  void RegisterTarget(CLI::App& command);
  void RegisterDefaults(CLI::App& command);
  void RegisterPromises(CLI::App& command);
  ProfileTarget Target(const ModelConfig& config) const;
  absl::StatusOr<std::unique_ptr<Engine>> StartEngine() const;
  absl::Status ReadSamples(const Engine& engine, CalibrationJob& job) const;
  absl::StatusOr<CalibrationJob> Job(const Engine& engine) const;
  absl::Status Write(const ProfileContent& content) const;
  absl::Status Run() const;
};

void CalibrateCommand::Register(CLI::App& command) {
  runtime.Register(command);
  command
      .add_option(
          "--text", texts,
          "Texts of the domain: .txt, or .jsonl with a field 'text' per line; either may be "
          "compressed as .xz; may be given several times")
      ->required()
      ->allow_extra_args(false);
  command
      .add_option("--sequences", sequences,
                  "Sequences to take, evenly spaced over the texts; 0: all")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_option("--sequence_tokens", sequence_tokens, "Tokens of a sequence")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command
      .add_option("--held_out", held_out,
                  "Share of the text that the profile is verified on, and not made from, in whole "
                  "documents")
      ->check([](const std::string& number) { return CheckReal(number, 0.0, kMaxHeldOut); })
      ->capture_default_str();
  RegisterTarget(command);
  RegisterDefaults(command);
  RegisterPromises(command);
  command
      .add_option("--label", labels, "KEY=VALUE, kept in the profile; may be given several times")
      ->allow_extra_args(false);
  command.add_option("--name", name, "The profile's name")->capture_default_str();
  command.add_option("--output", output, "File to write the profile to (JSON)")->required();
  command.add_flag("--json", json, "Write the outcome to stdout as JSON");
}

std::string CheckShare(const std::string& number) {
  return CheckReal(number, 0.0, 1.0);
}

void CalibrateCommand::RegisterTarget(CLI::App& command) {
  CLI::Option_group* target =
      command.add_option_group("target",
                               "What the profile is to reach; none: --dynamic_union_density=0.5, "
                               "of a model that predicts no "
                               "thresholds --max_perplexity_increase=0.5");
  target->add_option("--head_density", head_density, "Share of keys that a head attends to")
      ->check(CheckShare);
  target->add_option("--union_density", union_density, "Share of keys that a KV head reads")
      ->check(CheckShare);
  target
      ->add_option("--retained_mass", retained_mass,
                   "As sparse as keeping this share of full attention's mass allows; of a model "
                   "that predicts no thresholds")
      ->check(CheckShare);
  target
      ->add_option("--max_perplexity_increase", max_perplexity_increase,
                   "As sparse as a perplexity of so many percent over full attention's allows")
      ->check(
          [](const std::string& number) { return CheckReal(number, 0.0, kMaxPerplexityIncrease); });
  target
      ->add_option("--dynamic_union_density", dynamic_union_density,
                   "What dynamic thresholds read, at a perplexity of so many percent over theirs")
      ->check(
          [](const std::string& number) { return CheckReal(number, 0.0, kMaxPerplexityIncrease); });
  target->add_flag("--match_dynamic", match_dynamic,
                   "The soft density of dynamic thresholds, head by head");
  target->require_option(0, 1);
}

// What becomes the profile's defaults.
void CalibrateCommand::RegisterDefaults(CLI::App& command) {
  command
      .add_option("--z_recall", z_recall,
                  "z of each head: the smallest that admits this share of the keys above its "
                  "threshold")
      ->check(CheckShare);
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (!field.in_profile) return;
    const auto set = [this, field, member](const std::string& value) {
      const absl::Status status = SetField(field.name, field, value, settings.*member);
      if (!status.ok()) throw CLI::ValidationError(absl::StrCat("--", status.message()));
    };
    command.add_option_function<std::string>(absl::StrCat("--", field.name), set, field.help)
        ->type_name(RangeOf(field));
  });
}

void CalibrateCommand::RegisterPromises(CLI::App& command) {
  command
      .add_option("--min_retrieval", min_retrieval,
                  "Refuse unless this share of the needles that full attention finds is found [1]")
      ->check(CheckShare);
  command.add_flag("--allow_loss", allow_loss,
                   "Write a profile even if it costs more than 3 % perplexity, or a needle, or if "
                   "the text held out is too short to tell");
}

ProfileTarget CalibrateCommand::Target(const ModelConfig& config) const {
  if (head_density) return {ProfileTargetKind::kHeadDensity, *head_density};
  if (union_density) return {ProfileTargetKind::kUnionDensity, *union_density};
  if (max_perplexity_increase) {
    return {ProfileTargetKind::kMaxPerplexityIncrease, *max_perplexity_increase};
  }
  if (dynamic_union_density) {
    return {ProfileTargetKind::kDynamicUnionDensity, *dynamic_union_density};
  }
  if (retained_mass) return {ProfileTargetKind::kRetainedMass, *retained_mass};
  return match_dynamic ? ProfileTarget{} : DefaultTarget(config);
}

absl::StatusOr<std::unique_ptr<Engine>> CalibrateCommand::StartEngine() const {
  EngineOptions options;
  options.model_dir = runtime.model_dir;
  options.backend = runtime.backend;
  options.devices = {runtime.backend.device};
  options.kv_dtype = runtime.kv_dtype;
  options.index = runtime.index;
  options.index_dtype = runtime.index_dtype;
  options.weights = runtime.weights;
  options.prefix_cache = false;
  options.limits.max_context = std::max(options.limits.max_context, sequence_tokens);
  options.limits.max_prompt_bytes = static_cast<int64_t>(TextLimits().max_document_bytes);
  return Engine::Create(options);
}

absl::Status CalibrateCommand::ReadSamples(const Engine& engine, CalibrationJob& job) const {
  std::vector<std::vector<int32_t>> documents;
  size_t tokens = 0;
  for (const std::string& path : texts) {
    ASSIGN_OR_RETURN(const std::unique_ptr<TextSource> source, TextSource::Open(path));
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<std::string> document, source->Next());
      if (!document.has_value()) break;
      if (document->empty()) continue;
      absl::StatusOr<std::vector<int32_t>> ids = engine.Tokenize(*document);
      if (!ids.ok()) return source->InDocument(ids.status());
      tokens += ids->size();
      RETURN_IF_ERROR(CheckTextTokens(tokens));
      documents.push_back(*std::move(ids));
    }
  }
  job.equal_documents = RemoveEqual(documents);
  const EngineInfo& info = engine.info();
  SplitOptions options = {.sequence_tokens = sequence_tokens,
                          .min_tokens = sequence_tokens,
                          .beginning = info.beginning};
  const auto cut = [&] {
    job.samples.clear();
    job.documents.clear();
    for (size_t i = 0; i < documents.size(); ++i) {
      for (auto& sequence : CutSamples(std::span(&documents[i], 1), options)) {
        job.samples.push_back(std::move(sequence));
        job.documents.push_back(static_cast<int32_t>(i));
      }
    }
  };
  cut();
  if (sequences == 0 || job.samples.size() < static_cast<size_t>(sequences)) {
    // If whole sequences do not suffice, partial ones count too.
    options.min_tokens = kMinSequenceBlocks * info.block_size;
    cut();
  }
  job.samples = KeepSpread(std::move(job.samples), sequences);
  job.documents = KeepSpread(std::move(job.documents), sequences);
  return absl::OkStatus();
}

absl::StatusOr<CalibrationJob> CalibrateCommand::Job(const Engine& engine) const {
  CalibrationJob job = {.id = "eta-eval",
                        .tenant = "eta-eval",
                        .held_out = held_out,
                        .target = Target(engine.info().config),
                        .settings = settings,
                        .z_recall = z_recall,
                        .min_retrieval = min_retrieval,
                        .allow_loss = allow_loss,
                        .sequence_tokens = sequence_tokens};
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos) return InvalidField("label", "must be KEY=VALUE");
    job.labels[label.substr(0, equals)] = label.substr(equals + 1);
  }
  RETURN_IF_ERROR(ReadSamples(engine, job));
  return job;
}

absl::Status CalibrateCommand::Write(const ProfileContent& content) const {
  using std::chrono::duration_cast;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  ASSIGN_OR_RETURN(
      const std::string text,
      ProfileToJson({.name = name,
                     .version = 1,
                     .create_time_us = duration_cast<std::chrono::microseconds>(now).count(),
                     .content = content}));
  std::ofstream file(output, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return absl::PermissionDeniedError(absl::StrCat("output: cannot write ", output));
  return absl::OkStatus();
}

absl::Status CalibrateCommand::Run() const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, StartEngine());
  ASSIGN_OR_RETURN(const CalibrationJob job, Job(*engine));

  ProgressBar bar;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  ASSIGN_OR_RETURN(const CalibrationResult result,
                   Calibrate(*engine, job,
                             [&](const CalibrationProgress& progress) {
                               const auto ms = [](double s) {
                                 return static_cast<int64_t>(1000.0 * s);
                               };
                               if (progress.seconds_left > 0.0) {
                                 bar.Show(ms(seconds()), ms(seconds() + progress.seconds_left));
                               }
                             },
                             {}));
  const CalibrationRun run = {.model = runtime.model_dir,
                              .text = absl::StrJoin(texts, " "),
                              .backend = engine->info().backend,
                              .output = output,
                              .seconds = seconds(),
                              .lacks_index_metric = LacksIndexMetric(engine->info())};
  RETURN_IF_ERROR(Write(result.content));
  const std::string report = json ? CalibrationJson(run, result) : CalibrationTable(run, result);
  std::fputs(report.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, absl::Status& status) {
  AddCommand<CalibrateCommand>(
      app, status, "calibrate",
      "Makes a threshold profile from texts of a domain, as the server's Calibrate")
      ->footer(
          "Documents are cut into sequences, and held out whole: two at least, three for\n"
          "--max_perplexity_increase of a model that predicts thresholds. What is measured is "
          "measured on the second half of each\n"
          "sequence as decode rows, the first half being the prompt. See calibration/README.md.");
}

}  // namespace eta
