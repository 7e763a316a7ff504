// lint: untrusted-input
#include "service/profiles/convert_profile.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "calibration/calibrate/promises.h"
#include "engine/base/error.h"
#include "engine/model/model_config.h"
#include "service/wire/attention_message.h"

namespace eta {
namespace {

constexpr int64_t kMicrosPerSecond = 1'000'000;

void SetTime(int64_t micros, google::protobuf::Timestamp& out) {
  out.set_seconds(micros / kMicrosPerSecond);
  // cannot wrap: under 10^9
  out.set_nanos(static_cast<int32_t>(micros % kMicrosPerSecond * 1000));
}

void SetTarget(const ProfileTarget& in, v1::CalibrationTarget& out) {
  switch (in.kind) {
    case ProfileTargetKind::kMatchDynamic:
      out.mutable_match_dynamic();
      break;
    case ProfileTargetKind::kHeadDensity:
      out.set_head_density(in.value);
      break;
    case ProfileTargetKind::kUnionDensity:
      out.set_union_density(in.value);
      break;
    case ProfileTargetKind::kMaxPerplexityIncrease:
      out.set_max_perplexity_increase(in.value);
      break;
    case ProfileTargetKind::kDynamicUnionDensity:
      out.mutable_dynamic_union_density()->set_max_perplexity_increase(in.value);
      break;
    case ProfileTargetKind::kRetainedMass:
      out.set_retained_mass(in.value);
      break;
  }
}

void SetInterval(const PercentInterval& in, v1::PercentInterval& out) {
  out.set_low(in.low);
  out.set_high(in.high);
}

void SetNeedles(const NeedleHits& in, v1::NeedleHits& out) {
  out.set_asked(in.asked);
  out.set_full(in.full);
  out.set_frozen(in.frozen);
  out.set_kept(in.kept);
}

void SetEvidence(const ProfileEvidence& in, v1::ProfileEvidence& out) {
  out.set_perplexity_full(in.perplexity_full);
  if (in.perplexity_dynamic) out.set_perplexity_dynamic(*in.perplexity_dynamic);
  out.set_perplexity_frozen(in.perplexity_frozen);
  out.set_head_density(in.head_density);
  out.set_union_density(in.union_density);
  out.set_recall(in.recall);
  if (in.dynamic_head_density) out.set_dynamic_head_density(*in.dynamic_head_density);
  if (in.dynamic_union_density) out.set_dynamic_union_density(*in.dynamic_union_density);
  if (in.dynamic_recall) out.set_dynamic_recall(*in.dynamic_recall);
  out.set_calibration_sequences(in.calibration_sequences);
  out.set_calibration_tokens(in.calibration_tokens);
  out.set_held_out_sequences(in.held_out_sequences);
  out.set_held_out_tokens(in.held_out_tokens);
  if (in.increase_over_full) {
    SetInterval(*in.increase_over_full, *out.mutable_increase_over_full());
  }
  if (in.increase_over_dynamic) {
    SetInterval(*in.increase_over_dynamic, *out.mutable_increase_over_dynamic());
  }
  out.set_choice_sequences(in.choice_sequences);
  out.set_choice_tokens(in.choice_tokens);
  out.set_calibration_documents(in.calibration_documents);
  out.set_choice_documents(in.choice_documents);
  out.set_held_out_documents(in.held_out_documents);
  out.set_equal_documents(in.equal_documents);
  if (in.retained_mass) out.set_retained_mass(*in.retained_mass);
  if (in.retained_mass_p1) out.set_retained_mass_p1(*in.retained_mass_p1);
  if (in.single_needles) SetNeedles(*in.single_needles, *out.mutable_single_needles());
  if (in.multi_needles) SetNeedles(*in.multi_needles, *out.mutable_multi_needles());
  if (in.divergence) {
    out.mutable_divergence()->set_nats(in.divergence->nats);
    out.mutable_divergence()->set_rows(in.divergence->rows);
  }
  out.set_dynamic_dominates(DynamicDominates(in));
  out.set_unverified(Unverified(in));
  if (const std::optional<ShareInterval> kept = KeptShare(AllNeedles(in))) {
    out.mutable_kept_needles()->set_low(kept->low);
    out.mutable_kept_needles()->set_high(kept->high);
  }
}

}  // namespace

v1::Profile ToMessage(const ProfileRecord& record) {
  const ProfileContent& content = record.content;
  v1::Profile message;
  message.set_name(record.name);
  message.set_version(record.version);
  SetTime(record.create_time_us, *message.mutable_create_time());
  message.mutable_labels()->insert(content.labels.begin(), content.labels.end());
  message.set_model_fingerprint(content.model_fingerprint);
  message.set_tokenizer_fingerprint(content.tokenizer_fingerprint);
  v1::ProfileGeometry& geometry = *message.mutable_geometry();
  geometry.set_layers(content.geometry.layers);
  geometry.set_query_heads(content.geometry.query_heads);
  geometry.set_block_size(content.geometry.block_size);
  geometry.set_sub_block(content.geometry.sub_block);
  message.set_index(std::string(Name(content.formats.index)));
  message.set_kv_dtype(std::string(Name(content.formats.kv_dtype)));
  message.set_weights(std::string(Name(content.formats.weights)));
  SetTarget(content.target, *message.mutable_target());
  WriteSettings(content.settings, message);
  if (content.relative_c) message.set_relative_threshold(*content.relative_c);
  message.mutable_thresholds()->Add(content.thresholds.begin(), content.thresholds.end());
  message.mutable_z_per_head()->Add(content.z_per_head.begin(), content.z_per_head.end());
  v1::ReachedDensities& reached = *message.mutable_reached();
  reached.set_soft_density(content.reached.soft_density);
  reached.set_head_density(content.reached.head_density);
  reached.set_union_density(content.reached.union_density);
  SetEvidence(content.evidence, *message.mutable_evidence());
  message.set_request_id(record.request_id);
  message.set_checksum(record.checksum);
  message.set_staged(record.staged);
  return message;
}

v1::ProfileSummary ToMessage(const ProfileSummary& summary) {
  v1::ProfileSummary message;
  message.set_name(summary.name);
  message.set_version(summary.version);
  SetTime(summary.create_time_us, *message.mutable_create_time());
  message.set_bytes(summary.bytes);
  message.set_corrupt(summary.corrupt);
  message.set_model_fingerprint(summary.model_fingerprint);
  message.set_staged(summary.staged);
  return message;
}

absl::StatusOr<ProfileTarget> ToTarget(const std::string& field, const v1::CalibrationTarget& in) {
  const auto share = [&](ProfileTargetKind kind, const std::string& name,
                         double value) -> absl::StatusOr<ProfileTarget> {
    if (value > 0.0 && value <= 1.0) return ProfileTarget{.kind = kind, .value = value};
    return InvalidField(absl::StrCat(field, ".", name), "must be greater than 0 and at most 1");
  };
  const auto percent = [&](ProfileTargetKind kind, const std::string& name,
                           double value) -> absl::StatusOr<ProfileTarget> {
    if (value >= 0.0 && value <= kMaxPerplexityIncrease) {
      return ProfileTarget{.kind = kind, .value = value};
    }
    return InvalidField(absl::StrCat(field, ".", name),
                        absl::StrCat("must be 0 to ", kMaxPerplexityIncrease, " percent"));
  };
  switch (in.target_case()) {
    case v1::CalibrationTarget::kMatchDynamic:
      return ProfileTarget{.kind = ProfileTargetKind::kMatchDynamic, .value = 0.0};
    case v1::CalibrationTarget::kHeadDensity:
      return share(ProfileTargetKind::kHeadDensity, "head_density", in.head_density());
    case v1::CalibrationTarget::kUnionDensity:
      return share(ProfileTargetKind::kUnionDensity, "union_density", in.union_density());
    case v1::CalibrationTarget::kRetainedMass:
      return share(ProfileTargetKind::kRetainedMass, "retained_mass", in.retained_mass());
    case v1::CalibrationTarget::kMaxPerplexityIncrease:
      return percent(ProfileTargetKind::kMaxPerplexityIncrease, "max_perplexity_increase",
                     in.max_perplexity_increase());
    case v1::CalibrationTarget::kDynamicUnionDensity: {
      const v1::DynamicUnionDensity& bound = in.dynamic_union_density();
      return percent(ProfileTargetKind::kDynamicUnionDensity,
                     "dynamic_union_density.max_perplexity_increase",
                     bound.has_max_perplexity_increase() ? bound.max_perplexity_increase()
                                                         : kDefaultPerplexityIncrease);
    }
    case v1::CalibrationTarget::TARGET_NOT_SET:
      break;
  }
  return InvalidField(field,
                      "one of match_dynamic, head_density, union_density, max_perplexity_increase, "
                      "dynamic_union_density and retained_mass must be set");
}

}  // namespace eta
