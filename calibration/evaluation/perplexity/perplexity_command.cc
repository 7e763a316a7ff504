// eta-eval perplexity: compares ways of attending over the same windows of a text.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/commands.h"
#include "calibration/evaluation/perplexity.h"
#include "calibration/evaluation/perplexity_report.h"
#include "calibration/evaluation/profile_file.h"
#include "calibration/evaluation/progress_bar.h"
#include "calibration/evaluation/runtime_flags.h"
#include "calibration/evaluation/text/windows.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_fingerprint.h"
#include "engine/request/request_validation.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

constexpr int32_t kMaxContext = 1 << 20;

struct PerplexityCommand {
  RuntimeFlags runtime;
  std::string text;
  int32_t context = 0;
  int32_t prefill = 0;
  int32_t windows = 0;
  bool by_document = false;
  std::vector<std::string> attentions;
  std::optional<float> z;
  std::optional<float> offset;
  std::optional<std::string> floor;
  std::optional<int32_t> pinned_blocks;
  bool recall = true;
  bool json = false;

  void Register(CLI::App& command);
  absl::StatusOr<EvaluatedAttention> Attention(const std::string& name,
                                               const Runtime& loaded) const;
  absl::StatusOr<std::vector<EvaluatedAttention>> Attentions(const Runtime& loaded) const;
  absl::Status Run() const;
};

void PerplexityCommand::Register(CLI::App& command) {
  runtime.Register(command);
  command
      .add_option("--text", text,
                  "Text to predict: .txt, or .jsonl with a field 'text' per line; either may be "
                  "compressed as .xz")
      ->required();
  command.add_option("--context", context, "Predictions of one window")
      ->required()
      ->check(CLI::Range(1, kMaxContext));
  command
      .add_option("--prefill", prefill,
                  "Rows of a window that are fed as a prompt and not scored; the rest is decoded "
                  "token by token")
      ->check(CLI::Range(0, kMaxContext))
      ->capture_default_str();
  command.add_option("--windows", windows, "Windows to take at most; 0: all that the text fills")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_flag(
      "--by_document", by_document,
      "Windows as calibration's sequences: each in one document, a begin-of-text token "
      "in front, evenly spaced over the text");
  command
      .add_option("--attention", attentions,
                  "full, dynamic (thresholds predicted by the model), or profile:FILE, an exported "
                  "profile or {\"name\": ..., \"thresholds\": [[..HQ], ..L]}; may be given several "
                  "times")
      ->required()
      ->allow_extra_args(false)
      ->type_name("full|dynamic|profile:FILE");
  command
      .add_option("--z", z,
                  "Width of the bound in deviations, of every head [the profile's; else 1.5 with a "
                  "floor, 2 without]")
      ->check([](const std::string& number) { return CheckReal(number, 0.0, 16.0); });
  command
      .add_option("--floor", floor,
                  "Weight of pruned keys: uniform or none [the profile's; else uniform for gated "
                  "models]")
      ->check(CLI::IsMember({"uniform", "none"}));
  command
      .add_option("--offset", offset,
                  "Operating offset of the thresholds; above 0 admits more [the profile's; else 0]")
      ->check([](const std::string& number) { return CheckReal(number, -100.0, 100.0); });
  command.add_option("--pinned_blocks", pinned_blocks, "Last full blocks, always admitted [2]")
      ->check(CLI::Range(0, 1024));
  command.add_option(
      "--recall", recall,
      "Measure the share of above-threshold keys that were admitted (reads every key) [true]");
  command.add_flag("--json", json, "Write the outcome to stdout as JSON");
}

// InvalidArgument for other numbers of layers or heads; FailedPrecondition for a profile that was
// made for another model or block size.
absl::Status CheckMadeFor(const ThresholdProfile& profile, const Runtime& loaded) {
  const ModelConfig& config = loaded.config();
  if (profile.num_layers != config.num_layers ||
      profile.num_query_heads != config.num_query_heads) {
    return InvalidField("thresholds",
                        absl::StrCat("the model takes ", config.num_layers, " layers of ",
                                     config.num_query_heads, " query heads"));
  }
  const auto model = ModelFingerprint(config, loaded.checkpoint());
  if (!model.ok()) return model.status();
  const std::string& fingerprint = *model;
  // Older files name the model by its files.
  if (!profile.model_fingerprint.empty() && profile.model_fingerprint != fingerprint &&
      profile.model_fingerprint != loaded.checkpoint().files_fingerprint()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model_fingerprint: the profile was made for model ",
                     profile.model_fingerprint.substr(0, 12), "..., this is ",
                     fingerprint.substr(0, 12), "..."));
  }
  const KvGeometry blocks = MakeKvGeometry(config, DType::kFloat16);
  if (profile.block_size != 0 &&
      (profile.block_size != blocks.block_size || profile.sub_block != blocks.sub_block)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "geometry.block_size: the profile was made for blocks of ", profile.block_size, " by ",
        profile.sub_block, ", the model has ", blocks.block_size, " by ", blocks.sub_block));
  }
  return absl::OkStatus();
}

absl::StatusOr<EvaluatedAttention> PerplexityCommand::Attention(const std::string& name,
                                                                const Runtime& loaded) const {
  const ModelConfig& config = loaded.config();
  if (name == "full") {
    // The offset moves the gate too, so it applies to full attention as well.
    return EvaluatedAttention{.name = name,
                              .options = {.offset = offset.value_or(0.0f), .admit_all = true},
                              .profile = nullptr};
  }
  AttentionChoice choice = {
      .mode = AttentionMode::kDynamic, .offset = offset, .z = z, .pinned_blocks = pinned_blocks};
  if (floor) choice.uniform_floor = *floor == "uniform";
  if (name == "dynamic") {
    if (!config.has_predictor) {
      return InvalidField("attention", "must not be dynamic: the model predicts no thresholds");
    }
  } else {
    constexpr std::string_view kPrefix = "profile:";
    absl::StatusOr<ThresholdProfile> profile =
        ReadProfileFile(name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name);
    if (!profile.ok()) return profile.status();
    RETURN_IF_ERROR(CheckMadeFor(*profile, loaded));
    choice.mode = AttentionMode::kProfile;
    choice.profile = std::make_shared<const ThresholdProfile>(*std::move(profile));
  }
  ResolvedAttention resolved = ResolveAttention(choice, config);
  if (resolved.options.uniform_floor && config.gate != Gate::kSilu) {
    return InvalidField("floor", "must be none: the model has no gate");
  }
  return EvaluatedAttention{.name = name,
                            .options = resolved.options,
                            .profile = std::move(resolved.profile),
                            .head_z = resolved.head_z};
}

absl::StatusOr<std::vector<EvaluatedAttention>> PerplexityCommand::Attentions(
    const Runtime& loaded) const {
  std::vector<EvaluatedAttention> evaluated;
  bool sparse = false;
  for (const std::string& name : attentions) {
    absl::StatusOr<EvaluatedAttention> attention = Attention(name, loaded);
    if (!attention.ok()) return attention.status();
    sparse = sparse || !attention->options.admit_all;
    evaluated.push_back(*std::move(attention));
  }
  if (!sparse && (z || floor || pinned_blocks)) {
    return InvalidField("attention", "full attention reads no z, floor or pinned_blocks");
  }
  return evaluated;
}

absl::Status PerplexityCommand::Run() const {
  if (prefill >= context) return InvalidField("prefill", "must be less than context");
  const absl::StatusOr<std::unique_ptr<TextSource>> source = TextSource::Open(text);
  if (!source.ok()) return source.status();
  const absl::StatusOr<std::unique_ptr<Runtime>> loaded = Runtime::Load(runtime);
  if (!loaded.ok()) return loaded.status();
  const ModelConfig& config = (*loaded)->config();
  const absl::StatusOr<std::vector<EvaluatedAttention>> evaluated = Attentions(**loaded);
  if (!evaluated.ok()) return evaluated.status();
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load((*loaded)->checkpoint().tokenizer_files(), config);
  if (!tokenizer.ok()) return tokenizer.status();
  const absl::StatusOr<std::vector<std::vector<int32_t>>> cut =
      (by_document ? ReadDocumentWindows : ReadWindows)(**source, **tokenizer, context, windows,
                                                        kMaxTextTokens);
  if (!cut.ok()) return cut.status();
  const KvGeometry geometry = MakeKvGeometry(config, runtime.kv_dtype, runtime.index_dtype);
  const absl::StatusOr<std::unique_ptr<SequenceRunner>> runner =
      (*loaded)->MakeRunner(geometry, context);
  if (!runner.ok()) return runner.status();

  ProgressBar bar;
  const absl::StatusOr<std::vector<AttentionScore>> scores = EvaluatePerplexity(
      **runner, *cut, *evaluated,
      {.prefill = prefill, .recall = recall, .progress = [&bar](int64_t done, int64_t total) {
         bar.Show(done, total);
       }});
  if (!scores.ok()) return scores.status();
  const PerplexityRun run = {.model = runtime.model_dir,
                             .text = text,
                             .backend = (*loaded)->backend().description(),
                             .kv_dtype = std::string(Name(runtime.kv_dtype)),
                             .index_dtype = std::string(Name(geometry.index_dtype)),
                             .weights = runtime.weights == WeightFormat::kInt8 ? "int8" : "native",
                             .context = context,
                             .prefill = prefill,
                             .windows = static_cast<int64_t>(cut->size())};
  const std::string report =
      json ? PerplexityJson(run, *evaluated, *scores) : PerplexityTable(run, *evaluated, *scores);
  std::fputs(report.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddPerplexityCommand(CLI::App& app, absl::Status& status) {
  CLI::App* sub = app.add_subcommand(
      "perplexity", "Compares ways of attending by perplexity, density and recall");
  auto command = std::make_shared<PerplexityCommand>();
  command->Register(*sub);
  sub->footer(
      "The text's documents follow one another, each between begin- and end-of-text, and are cut\n"
      "into windows of --context predictions. Densities are means over scored rows, layers and\n"
      "heads of tokens attended (head) and tokens read per KV head (union) over the row's keys.\n"
      "Full attention is gated like the rest and prunes nothing: its densities are 1. Intervals\n"
      "are 95 %, over blocks of 256 consecutive tokens.");
  sub->callback([command, &status] { status = command->Run(); });
}

}  // namespace eta
