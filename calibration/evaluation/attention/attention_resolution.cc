#include "calibration/evaluation/attention/attention_resolution.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/attention/named_rival.h"
#include "calibration/evaluation/attention/profile_file.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_fingerprint.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

// InvalidArgument for other numbers of layers or heads; FailedPrecondition for a profile that was
// made for another model, block size or kind of index.
absl::Status CheckMadeFor(const ThresholdProfile& profile, const Runtime& loaded,
                          const KvGeometry& blocks) {
  const ModelConfig& config = loaded.config();
  if (profile.num_layers != config.num_layers ||
      profile.num_query_heads != config.num_query_heads) {
    return InvalidField("thresholds",
                        absl::StrCat("the model takes ", config.num_layers, " layers of ",
                                     config.num_query_heads, " query heads"));
  }
  ASSIGN_OR_RETURN(const auto read,
                   ParseModelConfig(loaded.checkpoint().config_json()));  // without flags
  ASSIGN_OR_RETURN(const std::string fingerprint, ModelFingerprint(read, loaded.checkpoint()));
  // Of a server whose requests are no longer than the windows.
  ASSIGN_OR_RETURN(const std::string full,
                   ModelFingerprint(ForContext(read, 1), loaded.checkpoint()));
  if (!profile.model_fingerprint.empty() && profile.model_fingerprint != fingerprint &&
      profile.model_fingerprint != full) {
    return absl::FailedPreconditionError(
        absl::StrCat("model_fingerprint: the profile was made for model ",
                     profile.model_fingerprint.substr(0, 12), "..., this is ",
                     fingerprint.substr(0, 12), "..."));
  }
  if (profile.block_size != 0 &&
      (profile.block_size != blocks.block_size || profile.sub_block != blocks.sub_block)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "geometry.block_size: the profile was made for blocks of ", profile.block_size, " by ",
        profile.sub_block, ", the cache has ", blocks.block_size, " by ", blocks.sub_block));
  }
  if (profile.index && *profile.index != blocks.index) {
    return absl::FailedPreconditionError(absl::StrCat(
        "index: the profile was calibrated on an index of kind ", std::string(Name(*profile.index)),
        ", this one is of kind ", std::string(Name(blocks.index))));
  }
  return absl::OkStatus();
}

// Relative thresholds in the place of those of a predictor.
absl::Status CheckRelative(const ModelConfig& config, const KvGeometry& geometry) {
  if (config.gate != Gate::kNone) {
    return InvalidField("attention", "must not be relative: the model has a gate");
  }
  if (geometry.index != IndexKind::kOutlier) {
    return InvalidField("index", "must be outlier for relative thresholds");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Rival>> MakeRival(const AttentionName& name,
                                                       const Runtime& loaded) {
  if (name.kind == AttentionKind::kOracle && loaded.config().gate != Gate::kNone) {
    return InvalidField("attention", "must not be oracle: the model has a gate");
  }
  auto rival = NamedRival(name, loaded.config().gate, loaded.config().beta);
  if (rival != nullptr && rival->by_key() && loaded.config().sinks) {
    return InvalidField("attention", "must not choose by key: the model has learned sinks");
  }
  return rival;
}

// A rival chooses blocks of decode rows, and has no threshold that keys could reach.
absl::Status CheckOfRivals(const AttentionSettings& settings) {
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (field.rivals_read || !(settings.*member).value_or(0)) return;
    status.Update(InvalidField(
        FlagOf(field),
        absl::StrCat("must be ", field.no,
                     ": a rival chooses blocks of decode rows alone, by no threshold")));
  });
  return status;
}

// The cache of the model, of another block size or kind of index where that is set.
KvGeometry GeometryFor(const EvaluationSettings& settings, const ModelConfig& config,
                       const KvGeometry& geometry) {
  if (!settings.block_size && !settings.index) return geometry;
  ModelConfig other = config;
  other.block_size = settings.block_size.value_or(geometry.block_size);
  other.index = settings.index.value_or(geometry.index);
  // The type of records is the user's for their own kind.
  return MakeKvGeometry(
      other, geometry.dtype,
      other.index == geometry.index ? std::optional(geometry.index_dtype) : std::nullopt);
}

}  // namespace

absl::StatusOr<EvaluatedAttention> ResolveEvaluated(const std::string& text,
                                                    const EvaluationSettings& settings,
                                                    const Runtime& loaded,
                                                    const KvGeometry& model_geometry) {
  const ModelConfig& config = loaded.config();
  ASSIGN_OR_RETURN(const AttentionName name, ParseAttentionName(text));
  EvaluationSettings all = name.settings.Or(settings);
  SetLocality(name.kind, all.attention);
  const KvGeometry geometry = GeometryFor(all, config, model_geometry);
  if (all.attention.temper_special.value_or(false) && config.gate == Gate::kNone) {
    return InvalidField("special_keys", "must be attend: the model has no gate");
  }
  AttentionChoice choice = {.mode = AttentionMode::kDynamic, .settings = all.attention};
  if (name.kind == AttentionKind::kFull) {
    if (AsksOfSparseAttention(name.settings.attention)) {
      return InvalidField("attention", "full attention prunes nothing and reads no such setting");
    }
    choice.mode = AttentionMode::kFull;
    EvaluatedAttention full{ResolveAttention(choice, config)};
    full.name = text;
    full.geometry = geometry;
    return full;
  }
  if (name.kind == AttentionKind::kProfile) {
    ASSIGN_OR_RETURN(ThresholdProfile profile, ReadProfileFile(name.file));
    RETURN_IF_ERROR(CheckMadeFor(profile, loaded, geometry));
    choice.mode = AttentionMode::kProfile;
    choice.profile = std::make_shared<const ThresholdProfile>(std::move(profile));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Rival> rival, MakeRival(name, loaded));
  if (rival != nullptr) RETURN_IF_ERROR(CheckOfRivals(all.attention));
  EvaluatedAttention evaluated{ResolveAttention(choice, config)};
  AttentionOptions& options = evaluated.options;
  const bool dynamic = name.kind == AttentionKind::kDynamic;
  options.relative = name.kind == AttentionKind::kRelative || (dynamic && !config.has_predictor) ||
                     (choice.profile && choice.profile->relative_c);
  if (options.relative) RETURN_IF_ERROR(CheckRelative(config, geometry));
  if (name.kind == AttentionKind::kRelative) {
    options.relative_c = name.number.value_or(options.relative_c);
  }
  if (options.uniform_floor && config.gate != Gate::kSilu) {
    return InvalidField("floor", "must be none: the model has no gate");
  }
  evaluated.name = text;
  evaluated.min_mass.reset();  // a profile's: evaluations never go on with full attention
  evaluated.rival = std::move(rival);
  evaluated.geometry = geometry;
  if (name.kind == AttentionKind::kConstants) evaluated.constants = name.number;
  return evaluated;
}

}  // namespace eta
