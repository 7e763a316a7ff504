#include "calibration/evaluation/attention/attention_flags.h"

#include <functional>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/profile_file.h"
#include "calibration/evaluation/rivals/oracle.h"
#include "calibration/evaluation/rivals/quest.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/rivals/top_k.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_fingerprint.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

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
  const auto read = ParseModelConfig(loaded.checkpoint().config_json());  // without flags
  if (!read.ok()) return read.status();
  const auto model = ModelFingerprint(*read, loaded.checkpoint());
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
  std::shared_ptr<const Rival> rival;
  if (name.kind == AttentionKind::kTopK) rival = MakeTopK(*name.number);
  if (name.kind == AttentionKind::kQuest) rival = MakeQuest(*name.number);
  if (name.kind == AttentionKind::kOracle) {
    if (loaded.config().gate != Gate::kNone) {
      return InvalidField("attention", "must not be oracle: the model has a gate");
    }
    rival = MakeOracle(*name.number);
  }
  const bool watched = rival || name.kind == AttentionKind::kConstants;
  if (watched && !RivalBackend::Serves(loaded.backend())) {
    return InvalidField("backend",
                        "must be cpu or reference for rivals of the product's attention");
  }
  return rival;
}

}  // namespace

void AttentionFlags::Register(CLI::App& command) {
  command
      .add_option("--attention", names,
                  "full; dynamic (the model's own thresholds); relative[:C]; profile:FILE, an "
                  "exported profile or {\"name\": ..., \"thresholds\": [[..HQ], ..L]}; or a rival: "
                  "topk:SHARE, quest:SHARE, oracle:C, constants:UNION. Settings of its own may "
                  "follow, as in relative:-4.6+reads=own. May be given several times")
      ->required()
      ->allow_extra_args(false)
      ->type_name("WAY");
  const auto add = [&](const std::string& name, const char* help, const char* type) {
    const auto set = [this, name](const std::string& value) {
      const absl::Status status = SetAttention(name, value, settings);
      if (!status.ok()) throw CLI::ValidationError(absl::StrCat("--", status.message()));
    };
    command.add_option_function<std::string>("--" + name, set, help)->type_name(type);
  };
  add("z",
      "Width of the bound in deviations, of every head [the profile's; else 1.5 with a floor, 2 "
      "without]",
      "0..16");
  add("floor",
      "Weight of pruned keys: uniform or none [the profile's; else uniform for gated models]",
      "none|uniform");
  add("offset", "Operating offset of the thresholds; above 0 admits more [the profile's; else 0]",
      "-100..100");
  add("pinned_blocks", "Last full blocks, always admitted [2]", "0..1024");
  add("sink_blocks", "First full blocks, always admitted [the profile's; else the model's]",
      "0..1024");
  add("reads",
      "What a head attends to: the blocks that it admitted, or all that are read for its KV head "
      "[the profile's; else the model's]",
      "own|shared");
  add("confirm",
      "Read V of a block only if its true scores reach the threshold [the profile's; else false]",
      "false|true");
  add("special_keys",
      "Keys of control tokens: attended to like others, or weighing exp(0) [the profile's; else "
      "the model's]",
      "attend|temper");
}

absl::StatusOr<EvaluatedAttention> AttentionFlags::One(const std::string& text,
                                                       const Runtime& loaded,
                                                       const KvGeometry& geometry) const {
  const ModelConfig& config = loaded.config();
  const absl::StatusOr<AttentionName> name = ParseAttentionName(text);
  if (!name.ok()) return name.status();
  const AttentionSettings all = name->settings.Or(settings);
  if (all.temper_special.value_or(false) && config.gate == Gate::kNone) {
    return InvalidField("special_keys", "must be attend: the model has no gate");
  }
  if (name->kind == AttentionKind::kFull) {
    if (name->settings.of_sparse_attention()) {
      return InvalidField("attention", "full attention prunes nothing and reads no such setting");
    }
    // The offset moves the gate too, so it applies to full attention as well.
    return EvaluatedAttention{
        .name = text,
        .options = {.offset = all.offset.value_or(0.0f), .uniform_floor = false, .admit_all = true},
        .profile = nullptr,
        .temper_special = all.temper_special.value_or(config.temper_special)};
  }
  AttentionChoice choice = {.mode = AttentionMode::kDynamic,
                            .offset = all.offset,
                            .z = all.z,
                            .uniform_floor = all.uniform_floor,
                            .pinned_blocks = all.pinned_blocks,
                            .sink_blocks = all.sink_blocks,
                            .shared_reads = all.shared_reads,
                            .confirm = all.confirm,
                            .temper_special = all.temper_special};
  if (name->kind == AttentionKind::kProfile) {
    absl::StatusOr<ThresholdProfile> profile = ReadProfileFile(name->file);
    if (!profile.ok()) return profile.status();
    RETURN_IF_ERROR(CheckMadeFor(*profile, loaded));
    choice.mode = AttentionMode::kProfile;
    choice.profile = std::make_shared<const ThresholdProfile>(*std::move(profile));
  }
  absl::StatusOr<std::shared_ptr<const Rival>> rival = MakeRival(*name, loaded);
  if (!rival.ok()) return rival.status();
  if (*rival != nullptr && all.confirm.value_or(false)) {
    return InvalidField("confirm", "must be false: a rival has no threshold that keys could reach");
  }
  ResolvedAttention resolved = ResolveAttention(choice, config);
  AttentionOptions& options = resolved.options;
  const bool dynamic = name->kind == AttentionKind::kDynamic;
  options.relative = name->kind == AttentionKind::kRelative || (dynamic && !config.has_predictor) ||
                     (choice.profile && choice.profile->relative_c);
  if (options.relative) RETURN_IF_ERROR(CheckRelative(config, geometry));
  if (choice.profile) options.relative_c = choice.profile->relative_c.value_or(options.relative_c);
  if (name->kind == AttentionKind::kRelative) {
    options.relative_c = name->number.value_or(options.relative_c);
  }
  if (options.uniform_floor && config.gate != Gate::kSilu) {
    return InvalidField("floor", "must be none: the model has no gate");
  }
  EvaluatedAttention evaluated = {.name = text,
                                  .options = options,
                                  .profile = std::move(resolved.profile),
                                  .head_z = resolved.head_z,
                                  .temper_special = resolved.temper_special,
                                  .rival = *std::move(rival)};
  if (name->kind == AttentionKind::kConstants) evaluated.constants = name->number;
  return evaluated;
}

absl::StatusOr<std::vector<EvaluatedAttention>> AttentionFlags::Resolve(
    const Runtime& loaded, const KvGeometry& geometry) const {
  std::vector<EvaluatedAttention> evaluated;
  bool sparse = false;
  for (const std::string& name : names) {
    absl::StatusOr<EvaluatedAttention> attention = One(name, loaded, geometry);
    if (!attention.ok()) return attention.status();
    sparse = sparse || !attention->options.admit_all;
    evaluated.push_back(*std::move(attention));
  }
  if (!sparse && settings.of_sparse_attention()) {
    return InvalidField(
        "attention",
        "full attention reads no z, floor, pinned_blocks, sink_blocks, reads or confirm");
  }
  return evaluated;
}

}  // namespace eta
