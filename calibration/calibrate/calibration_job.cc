#include "calibration/calibrate/calibration_job.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/calibrate/perplexity_increase.h"
#include "calibration/calibrate/retrieval_windows.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

// NaN is no share.
absl::Status CheckShare(const std::string& field, double value, double high) {
  if (value > 0.0 && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be greater than 0 and at most ", high));
}

// What only one of the two kinds of thresholds has.
absl::Status CheckKind(const CalibrationJob& job, const EngineInfo& info) {
  const ModelConfig& config = info.config;
  if (config.num_full_layers() == 0) {
    return UnsupportedByModel("model", "has no layer with full attention: all see a window");
  }
  if (config.has_predictor) {
    if (job.target.kind == ProfileTargetKind::kRetainedMass) {
      return UnsupportedByModel("target.retained_mass",
                                "this model predicts thresholds, and a mass is of relative ones");
    }
    if (job.target.kind != ProfileTargetKind::kMatchDynamic || config.gate == Gate::kSilu) {
      return absl::OkStatus();
    }
  }
  constexpr char kAsk[] =
      ": ask for head_density, union_density, max_perplexity_increase or retained_mass";
  if (job.target.kind == ProfileTargetKind::kMatchDynamic) {
    return UnsupportedByModel("target.match_dynamic",
                              absl::StrCat("this model has no dynamic thresholds to match", kAsk));
  }
  if (job.target.kind == ProfileTargetKind::kDynamicUnionDensity) {
    return UnsupportedByModel(
        "target.dynamic_union_density",
        absl::StrCat("this model has no dynamic thresholds to read as much as", kAsk));
  }
  constexpr char kNoBound[] =
      "this model's thresholds are relative: they compare an estimated mass, not a bound with a "
      "width";
  if (job.z_recall) return UnsupportedByModel("z_recall", kNoBound);
  if (job.settings.z) return UnsupportedByModel("z", kNoBound);
  if (config.has_relative_thresholds()) return absl::OkStatus();
  return UnsupportedByModel(
      "model",
      "predicts no thresholds, and relative ones need an index of kind outlier "
      "(--index=outlier)");
}

int64_t MostSequenceTokens(const Limits& limits) {
  return std::min<int64_t>(limits.max_context, kMaxCalibrationRows);
}

int32_t SequenceTokens(const CalibrationJob& job, const Limits& limits) {
  // cannot wrap: at most kMaxCalibrationRows
  return job.sequence_tokens.value_or(
      static_cast<int32_t>(std::min<int64_t>(kDefaultSequenceTokens, MostSequenceTokens(limits))));
}

absl::Status CheckSequenceTokens(const CalibrationJob& job, int32_t block_size,
                                 const Limits& limits) {
  const int64_t low = int64_t{kMinSequenceBlocks} * block_size;
  const int64_t high = MostSequenceTokens(limits);
  const int32_t tokens = SequenceTokens(job, limits);
  if (tokens >= low && tokens <= high) return absl::OkStatus();
  return InvalidField("sequence_tokens", absl::StrCat("must be ", low, " to ", high));
}

absl::Status CheckSamples(const CalibrationJob& job, int32_t vocab_size) {
  const std::vector<std::vector<int32_t>>& samples = job.samples;
  int64_t tokens = 0;
  for (const auto& sample : samples) tokens += static_cast<int64_t>(sample.size());
  RETURN_IF_ERROR(CheckSampleSizes(samples.size(), tokens, kMaxCalibrationTokens));
  if (!job.documents.empty() && job.documents.size() != samples.size()) {
    return InvalidField("documents", "must be as many as samples, or none");
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::optional<size_t> bad = FirstOutside(samples[i], vocab_size);
    if (!bad) continue;
    return InvalidField(
        absl::StrCat("samples[", i, "].token_ids.ids"),
        absl::StrCat("holds ", samples[i][*bad], ": ids must be 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

// Refuses a verdict on a perplexity or a mass that too few tokens would give. A target that bounds
// none goes without one if the job allows any loss.
absl::Status CheckVerdictTokens(const CalibrationJob& job, const SampleSplit& split) {
  const auto check = [](const char* use, const char* remedy,
                        std::span<const std::vector<int32_t>> sequences) {
    const int64_t tokens = MeasuredTokens(sequences);
    if (tokens >= kMinVerdictTokens) return absl::OkStatus();
    return InvalidField(
        "samples", absl::StrCat("are too short to judge a perplexity or a mass: the documents ",
                                use, " must have at least ", kMinVerdictTokens,
                                " tokens in the second halves of their sequences, and have ",
                                tokens, "; ", remedy));
  };
  constexpr char kMore[] = "send more text, or hold out a larger share of it (held_out)";
  switch (job.target.kind) {
    case ProfileTargetKind::kMaxPerplexityIncrease:
    case ProfileTargetKind::kRetainedMass:
      RETURN_IF_ERROR(check("to choose on", "send more text",
                            split.choice.empty() ? split.calibration : split.choice));
      return check("held out", kMore, split.held_out);
    case ProfileTargetKind::kDynamicUnionDensity:
      return check("held out", kMore, split.held_out);
    case ProfileTargetKind::kMatchDynamic:
    case ProfileTargetKind::kHeadDensity:
    case ProfileTargetKind::kUnionDensity:
      break;
  }
  if (job.allow_loss) return absl::OkStatus();
  return check("held out",
               "send more text, hold out a larger share of it (held_out), or store the profile "
               "unverified (allow_loss)",
               split.held_out);
}

}  // namespace

ProfileTarget DefaultTarget(const ModelConfig& config) {
  return {config.has_predictor ? ProfileTargetKind::kDynamicUnionDensity
                               : ProfileTargetKind::kMaxPerplexityIncrease,
          kDefaultPerplexityIncrease};
}

bool LacksIndexMetric(const EngineInfo& info) {
  return info.config.has_relative_thresholds() && !info.index_metric;
}

absl::Status CheckSampleSizes(size_t samples, int64_t tokens, int64_t max_tokens) {
  if (samples == 0) return InvalidField("samples", "at least one is needed");
  if (tokens <= max_tokens) return absl::OkStatus();
  return InvalidField("samples", absl::StrCat("at most ", max_tokens, " tokens in all"));
}

absl::Status CheckJob(const CalibrationJob& job, const EngineInfo& info, const Limits& limits) {
  RETURN_IF_ERROR(CheckShare("held_out", job.held_out, kMaxHeldOut));
  RETURN_IF_ERROR(CheckShare("z_recall", job.z_recall.value_or(1.0), 1.0));
  RETURN_IF_ERROR(CheckBounds("", job.settings));
  if (info.config.gate == Gate::kNone) RETURN_IF_ERROR(RefuseGated("", job.settings));
  RETURN_IF_ERROR(CheckShare("min_retrieval", job.min_retrieval.value_or(1.0), 1.0));
  RETURN_IF_ERROR(CheckKind(job, info));
  return CheckSequenceTokens(job, info.block_size, limits);
}

absl::StatusOr<PreparedJob> PrepareJob(const EngineInfo& info, const Limits& limits,
                                       const CalibrationJob& job) {
  const ModelConfig& config = info.config;
  RETURN_IF_ERROR(CheckRequestId("id", job.id));
  RETURN_IF_ERROR(CheckJob(job, info, limits));
  PreparedJob prepared;
  prepared.has_dynamic_gate = config.has_predictor && config.gate == Gate::kSilu;
  prepared.beta = config.gate == Gate::kSilu ? config.beta : kUngatedBeta;

  ProfileContent& content = prepared.content;
  content.labels = job.labels;
  content.model_fingerprint = info.model_fingerprint;
  content.tokenizer_fingerprint = info.tokenizer_fingerprint;
  content.geometry = {.layers = config.num_layers,
                      .query_heads = config.num_query_heads,
                      .block_size = info.block_size,
                      .sub_block = info.sub_block};
  content.formats = {.index = info.index, .kv_dtype = info.kv_dtype, .weights = info.weights};
  AttentionChoice choice = {.mode = AttentionMode::kProfile,
                            .profile = std::make_shared<const ThresholdProfile>(),
                            .settings = job.settings};
  content.settings = UsedSettings(ResolveAttention(choice, config));
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (!field.in_profile) (content.settings.*member).reset();
  });
  if (config.has_predictor) {
    content.thresholds.assign(
        static_cast<size_t>(config.num_layers) * static_cast<size_t>(config.num_query_heads), 0.0f);
  } else {
    content.relative_c = kDefaultRelativeC;
    ForEachSetting([&](const AttentionField& field, auto member) {
      if (!field.relative_reads) (content.settings.*member).emplace();
    });
  }
  content.target = job.target;
  // Stand-ins, so that the other fields can be checked before anything is measured.
  content.evidence = {.perplexity_full = 1.0,
                      .perplexity_frozen = 1.0,
                      .calibration_sequences = 1,
                      .calibration_tokens = 1};
  RETURN_IF_ERROR(CheckProfileContent(content));

  RETURN_IF_ERROR(CheckSamples(job, config.vocab_size));
  ASSIGN_OR_RETURN(
      SampleSplit split,
      SplitSamples(job.samples,
                   {.sequence_tokens = SequenceTokens(job, limits),
                    .min_tokens = kMinSequenceBlocks * info.block_size,
                    .beginning = info.beginning,
                    .held_out = job.held_out,
                    .choice = config.has_predictor &&
                              job.target.kind == ProfileTargetKind::kMaxPerplexityIncrease},
                   job.documents));
  RETURN_IF_ERROR(CheckVerdictTokens(job, split));
  prepared.split = std::move(split);
  ProfileEvidence& evidence = content.evidence;
  evidence.calibration_sequences = static_cast<int64_t>(prepared.split.calibration.size());
  evidence.calibration_tokens = SampleSplit::Tokens(prepared.split.calibration);
  evidence.held_out_sequences = static_cast<int64_t>(prepared.split.held_out.size());
  evidence.held_out_tokens = SampleSplit::Tokens(prepared.split.held_out);
  evidence.choice_sequences = static_cast<int64_t>(prepared.split.choice.size());
  evidence.choice_tokens = SampleSplit::Tokens(prepared.split.choice);
  evidence.calibration_documents = prepared.split.calibration_documents;
  evidence.choice_documents = prepared.split.choice_documents;
  evidence.held_out_documents = prepared.split.held_out_documents;
  evidence.equal_documents = prepared.split.equal_documents + job.equal_documents;
  return prepared;
}

absl::Status MakeNeedles(const Engine& engine, const CalibrationJob& job, PreparedJob& prepared) {
  size_t longest = 0;
  for (const auto& sequence : prepared.split.held_out) longest = std::max(longest, sequence.size());
  const ModelConfig& config = engine.info().config;
  prepared.needles = MakeRetrievalWindows(
      prepared.split.held_out, prepared.split.calibration,
      {.window_tokens = static_cast<int32_t>(longest),
       .beginning = engine.info().beginning,
       .reserved_ids = config.eos_ids,
       .tokenize = [&engine](std::string_view text) { return engine.Tokenize(text); }});
  if (!job.min_retrieval || !prepared.needles.empty()) return absl::OkStatus();
  const auto beginning = static_cast<int32_t>(engine.info().beginning.size());
  return InvalidField(
      "samples",
      absl::StrCat("are too short or too uniform to hide needles in for min_retrieval: a sequence "
                   "held out must have at least ",
                   LeastWindowTokens(beginning), " tokens, and the longest has ", longest,
                   "; the samples must have at least ", kNeedleIds, " different tokens"));
}

}  // namespace eta
