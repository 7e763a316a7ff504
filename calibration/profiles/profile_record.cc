// lint: untrusted-input, fuzz-covered
#include "calibration/profiles/profile_record.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/request/request.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

constexpr size_t kMaxNameBytes = 63;
constexpr size_t kMaxLabels = 16;
constexpr size_t kMaxLabelBytes = 255;
constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxBlock = 1024;

bool IsSha256(std::string_view digest) {
  return digest.size() == 64 && std::all_of(digest.begin(), digest.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

absl::Status CheckFingerprint(const std::string& field, std::string_view digest) {
  if (IsSha256(digest)) return absl::OkStatus();
  return InvalidField(field, "must be 64 lower-case hexadecimal digits");
}

// NaN lies in no range.
absl::Status CheckRange(const std::string& field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be in [", low, ", ", high, "]"));
}

absl::Status CheckPerplexity(const std::string& field, double value) {
  if (std::isfinite(value) && value > 0.0) return absl::OkStatus();
  return InvalidField(field, "must be a finite number above 0");
}

absl::Status CheckGeometry(const ProfileGeometry& geometry) {
  const auto check = [](const std::string& field, int32_t value, int32_t high) {
    return CheckRange("geometry." + field, value, 1, high);
  };
  RETURN_IF_ERROR(check("layers", geometry.layers, kMaxLayers));
  RETURN_IF_ERROR(check("query_heads", geometry.query_heads, kMaxHeads));
  RETURN_IF_ERROR(check("block_size", geometry.block_size, kMaxBlock));
  const bool divides = geometry.sub_block > 0 && geometry.block_size % geometry.sub_block == 0;
  if (geometry.sub_block != 0 && !divides) {
    return InvalidField("geometry.sub_block", "must be 0 or divide geometry.block_size");
  }
  // cannot wrap: both are in their ranges
  const size_t heads = size_t(geometry.layers) * size_t(geometry.query_heads);
  if (heads > kMaxProfileThresholds) {
    return InvalidField(
        "geometry", absl::StrCat("layers x query_heads must be at most ", kMaxProfileThresholds));
  }
  return absl::OkStatus();
}

absl::Status CheckFormats(const ProfileFormats& formats) {
  if (formats.index > IndexKind::kOutlier) return InvalidField("index", "is unknown");
  if (formats.weights > WeightFormat::kInt4) return InvalidField("weights", "is unknown");
  switch (formats.kv_dtype) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat8E4M3:
      return absl::OkStatus();
    default:
      return InvalidField("kv_dtype", "is no format of a KV cache");
  }
}

// All that a profile says is there, and nothing else.
absl::Status CheckSettings(const AttentionSettings& settings) {
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    const bool there = (settings.*member).has_value();
    if (status.ok() && field.in_profile && !field.optional && !there) {
      status = InvalidField(field.name, "must be set");
    }
    if (status.ok() && !field.in_profile && there) {
      status = InvalidField(field.name, "is no profile's to say");
    }
  });
  RETURN_IF_ERROR(status);
  return CheckBounds("", settings);
}

// A relative profile has nothing that its rule does not read.
absl::Status CheckRelative(const ProfileContent& content) {
  RETURN_IF_ERROR(
      CheckRange("relative_threshold", *content.relative_c, -kMaxRelativeC, kMaxRelativeC));
  const auto none = [](const char* field, const std::string& rule) {
    return InvalidField(field, absl::StrCat(rule, " beside relative_threshold"));
  };
  if (!content.thresholds.empty()) return none("thresholds", "must be absent");
  if (!content.z_per_head.empty()) return none("z_per_head", "must be absent");
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (!status.ok() || field.relative_reads || !(content.settings.*member).value_or(0)) return;
    status = none(field.name, absl::StrCat("must be ", field.IsChoice() ? field.no : "0"));
  });
  RETURN_IF_ERROR(status);
  if (content.formats.index != IndexKind::kOutlier) return none("index", "must be outlier");
  return absl::OkStatus();
}

absl::Status CheckPerHead(const ProfileContent& content) {
  // cannot wrap: after CheckGeometry
  const size_t heads = size_t(content.geometry.layers) * size_t(content.geometry.query_heads);
  if (content.thresholds.size() != heads) {
    return InvalidField("thresholds", absl::StrCat("must be layers x query_heads = ", heads,
                                                   " numbers, not ", content.thresholds.size()));
  }
  for (size_t i = 0; i < heads; ++i) {
    if (std::isfinite(content.thresholds[i])) continue;
    const size_t width = size_t(content.geometry.query_heads);
    return InvalidField(absl::StrCat("thresholds[", i / width, "][", i % width, "]"),
                        "must be a finite number");
  }
  if (content.z_per_head.empty()) return absl::OkStatus();
  if (content.z_per_head.size() != heads) {
    return InvalidField("z_per_head", "must be as many numbers as thresholds, or none");
  }
  for (const float z : content.z_per_head) {
    RETURN_IF_ERROR(CheckRange("z_per_head", z, 0, AttentionSettings::kMaxZ));
  }
  return absl::OkStatus();
}

absl::Status CheckTarget(const ProfileTarget& target) {
  switch (target.kind) {
    case ProfileTargetKind::kMatchDynamic:
      if (target.value == 0.0) return absl::OkStatus();
      return InvalidField("target.value", "must be 0 for match_dynamic");
    case ProfileTargetKind::kHeadDensity:
    case ProfileTargetKind::kUnionDensity:
    case ProfileTargetKind::kRetainedMass:
      if (target.value > 0.0 && target.value <= 1.0) return absl::OkStatus();
      return InvalidField("target.value", "must be in (0, 1]");
    case ProfileTargetKind::kMaxPerplexityIncrease:
    case ProfileTargetKind::kDynamicUnionDensity:
      return CheckRange("target.value", target.value, 0, kMaxPerplexityIncrease);
  }
  return InvalidField("target.kind", "is unknown");
}

// Targets that name dynamic thresholds have constants; a retained mass has a relative threshold.
absl::Status CheckTargetOfKind(const ProfileContent& content) {
  const ProfileTargetKind kind = content.target.kind;
  const bool relative = content.relative_c.has_value();
  const bool mass = kind == ProfileTargetKind::kRetainedMass;
  const bool dynamic =
      kind == ProfileTargetKind::kMatchDynamic || kind == ProfileTargetKind::kDynamicUnionDensity;
  if (!(mass && !relative) && !(dynamic && relative)) return absl::OkStatus();
  return InvalidField("target.kind", relative
                                         ? "names dynamic thresholds, and relative_threshold is "
                                           "of a model without them"
                                         : "retained_mass needs relative_threshold");
}

absl::Status CheckInterval(const std::string& field,
                           const std::optional<PercentInterval>& interval) {
  if (!interval) return absl::OkStatus();
  if (interval->low >= -100.0 && interval->low <= interval->high && std::isfinite(interval->high)) {
    return absl::OkStatus();
  }
  return InvalidField(field, "must be two finite numbers, -100 <= low <= high");
}

absl::Status CheckRetainedMass(const ProfileEvidence& evidence) {
  if (evidence.retained_mass.has_value() != evidence.retained_mass_p1.has_value()) {
    return InvalidField("evidence.retained_mass_p1", "must be there if retained_mass is");
  }
  RETURN_IF_ERROR(CheckRange("evidence.retained_mass", evidence.retained_mass.value_or(0), 0, 1));
  return CheckRange("evidence.retained_mass_p1", evidence.retained_mass_p1.value_or(0), 0, 1);
}

absl::Status CheckNeedles(const std::string& field, const std::optional<NeedleHits>& hits) {
  if (!hits) return absl::OkStatus();
  const NeedleHits& h = *hits;
  if (h.kept >= 0 && h.kept <= h.full && h.kept <= h.frozen && h.full <= h.asked &&
      h.frozen <= h.asked) {
    return absl::OkStatus();
  }
  return InvalidField(field, "must be counts, 0 <= kept <= full, frozen <= asked");
}

absl::Status CheckDivergence(const ProfileContent& content) {
  const std::optional<Divergence>& divergence = content.evidence.divergence;
  if (!divergence) return absl::OkStatus();
  constexpr char kField[] = "evidence.divergence";
  if (!content.relative_c) return InvalidField(kField, "needs relative_threshold");
  if (divergence->nats >= 0.0 && std::isfinite(divergence->nats) && divergence->rows >= 1) {
    return absl::OkStatus();
  }
  return InvalidField(kField, "must be of at least 1 row, and finite nats, at least 0");
}

absl::Status CheckEvidence(const ProfileEvidence& evidence) {
  const auto perplexity = [](const char* field, double value) {
    return CheckPerplexity(std::string("evidence.perplexity_") + field, value);
  };
  RETURN_IF_ERROR(perplexity("full", evidence.perplexity_full));
  RETURN_IF_ERROR(perplexity("dynamic", evidence.perplexity_dynamic.value_or(1.0)));
  RETURN_IF_ERROR(perplexity("frozen", evidence.perplexity_frozen));
  for (const auto& [field, value] :
       {std::pair{"head_density", evidence.head_density},
        std::pair{"union_density", evidence.union_density}, std::pair{"recall", evidence.recall}}) {
    RETURN_IF_ERROR(CheckRange(std::string("evidence.") + field, value, 0, 1));
  }
  for (const auto& [field, value] : {std::pair{"head_density", evidence.dynamic_head_density},
                                     std::pair{"union_density", evidence.dynamic_union_density},
                                     std::pair{"recall", evidence.dynamic_recall}}) {
    if (!value) continue;
    const std::string path = std::string("evidence.dynamic_") + field;
    if (!evidence.perplexity_dynamic) {
      return InvalidField(path, "needs evidence.perplexity_dynamic beside it");
    }
    RETURN_IF_ERROR(CheckRange(path, *value, 0, 1));
  }
  RETURN_IF_ERROR(CheckRetainedMass(evidence));
  RETURN_IF_ERROR(CheckNeedles("evidence.single_needles", evidence.single_needles));
  RETURN_IF_ERROR(CheckNeedles("evidence.multi_needles", evidence.multi_needles));
  RETURN_IF_ERROR(CheckInterval("evidence.increase_over_full", evidence.increase_over_full));
  RETURN_IF_ERROR(CheckInterval("evidence.increase_over_dynamic", evidence.increase_over_dynamic));
  if (evidence.increase_over_dynamic && !evidence.perplexity_dynamic) {
    return InvalidField("evidence.increase_over_dynamic",
                        "needs evidence.perplexity_dynamic beside it");
  }
  for (const auto& [field, value, least] :
       {std::tuple{"calibration_sequences", evidence.calibration_sequences, int64_t{1}},
        std::tuple{"calibration_tokens", evidence.calibration_tokens, int64_t{1}},
        std::tuple{"held_out_sequences", evidence.held_out_sequences, int64_t{0}},
        std::tuple{"held_out_tokens", evidence.held_out_tokens, int64_t{0}},
        std::tuple{"choice_sequences", evidence.choice_sequences, int64_t{0}},
        std::tuple{"choice_tokens", evidence.choice_tokens, int64_t{0}},
        std::tuple{"calibration_documents", evidence.calibration_documents, int64_t{0}},
        std::tuple{"choice_documents", evidence.choice_documents, int64_t{0}},
        std::tuple{"held_out_documents", evidence.held_out_documents, int64_t{0}},
        std::tuple{"equal_documents", evidence.equal_documents, int64_t{0}}}) {
    if (value < least) {
      return InvalidField(std::string("evidence.") + field, absl::StrCat("is under ", least));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tenant> Tenant::Parse(std::string_view id) {
  if (id.empty() || id.size() > kMaxBytes ||
      !std::all_of(id.begin(), id.end(), absl::ascii_isgraph)) {
    return InvalidField("tenant", absl::StrCat("must be 1 to ", kMaxBytes,
                                               " printable ASCII characters without spaces"));
  }
  return Tenant(std::string(id));
}

absl::Status OtherProfileSchema(const std::string& sentence, bool relative,
                                const std::string& field) {
  const std::string read =
      relative ? absl::StrCat(
                     "its relative threshold was chosen for another estimate of masses, or by "
                     "another search, than this build's, which are of schema ",
                     kRelativeSchemaVersion, "; calibrate it again")
               : absl::StrCat("this build reads ", kProfileSchemaVersion, ", or ",
                              kRelativeSchemaVersion, " with a relative threshold");
  return MakeError(absl::StatusCode::kFailedPrecondition, absl::StrCat(sentence, "; ", read),
                   {.reason = "PROFILE_SCHEMA_MISMATCH", .field = field});
}

int64_t MeasuredContext(const ProfileEvidence& evidence) {
  if (evidence.held_out_sequences <= 0) return 0;
  return evidence.held_out_tokens / evidence.held_out_sequences;
}

absl::Status CheckProfileName(const std::string& field, std::string_view name) {
  const bool allowed = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_' || c == '.';
  });
  if (allowed && !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.') {
    return absl::OkStatus();
  }
  return InvalidField(field, absl::StrCat("must be 1 to ", kMaxNameBytes,
                                          " characters of a-z 0-9 - _ . and begin with no dot"));
}

absl::Status CheckProfileAlias(const std::string& field, std::string_view alias) {
  RETURN_IF_ERROR(CheckProfileName(field, alias));
  if (absl::ascii_islower(alias.front())) return absl::OkStatus();
  return InvalidField(field, "must begin with a letter");
}

absl::Status CheckProfileLabelCount(size_t count) {
  if (count <= kMaxLabels) return absl::OkStatus();
  return InvalidField("labels", absl::StrCat("must be at most ", kMaxLabels));
}

absl::Status CheckProfileLabels(const std::map<std::string, std::string>& labels) {
  RETURN_IF_ERROR(CheckProfileLabelCount(labels.size()));
  for (const auto& [key, value] : labels) {
    RETURN_IF_ERROR(CheckProfileName("labels", key));
    const bool plain = std::none_of(value.begin(), value.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    });
    if (value.size() > kMaxLabelBytes || !plain || FirstInvalidUtf8(value)) {
      return InvalidField(absl::StrCat("labels.", key),
                          absl::StrCat("must be up to ", kMaxLabelBytes,
                                       " bytes of UTF-8 without control characters"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRequestIdentity(std::string_view request_id, std::string_view payload_digest) {
  if (request_id.empty() && payload_digest.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRequestId("request_id", request_id));
  return CheckFingerprint("payload_digest", payload_digest);
}

absl::Status CheckExpectedVersion(std::optional<int64_t> version) {
  if (!version || *version >= 0) return absl::OkStatus();
  return InvalidField("expected_version", "must not be negative");
}

absl::Status CheckProfileContent(const ProfileContent& content) {
  RETURN_IF_ERROR(CheckProfileLabels(content.labels));
  RETURN_IF_ERROR(CheckFingerprint("model_fingerprint", content.model_fingerprint));
  RETURN_IF_ERROR(CheckFingerprint("tokenizer_fingerprint", content.tokenizer_fingerprint));
  RETURN_IF_ERROR(CheckGeometry(content.geometry));
  RETURN_IF_ERROR(CheckFormats(content.formats));
  RETURN_IF_ERROR(CheckSettings(content.settings));
  RETURN_IF_ERROR(content.relative_c ? CheckRelative(content) : CheckPerHead(content));
  RETURN_IF_ERROR(CheckTarget(content.target));
  RETURN_IF_ERROR(CheckTargetOfKind(content));
  for (const auto& [field, value] : {std::pair{"soft_density", content.reached.soft_density},
                                     std::pair{"head_density", content.reached.head_density},
                                     std::pair{"union_density", content.reached.union_density}}) {
    RETURN_IF_ERROR(CheckRange(std::string("reached.") + field, value, 0, 1));
  }
  RETURN_IF_ERROR(CheckDivergence(content));
  return CheckEvidence(content.evidence);
}

}  // namespace eta
