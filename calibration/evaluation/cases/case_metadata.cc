#include "calibration/evaluation/cases/case_metadata.h"

#include <charconv>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

template <typename T>
absl::StatusOr<T> NumberField(const CaseMetadata& metadata, const std::string& field, T low,
                              T high) {
  const std::string limits = absl::StrCat("must be a number from ", low, " to ", high);
  const auto found = metadata.find(field);
  if (found == metadata.end()) return InvalidField(field, "is missing; " + limits);
  const std::string& text = found->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  // The condition is written so that NaN fails.
  if (!whole || !(value >= low && value <= high)) return InvalidField(field, limits);
  return value;
}

}  // namespace

absl::StatusOr<int32_t> IntegerField(const CaseMetadata& metadata, const std::string& field,
                                     int32_t low, int32_t high) {
  return NumberField<int32_t>(metadata, field, low, high);
}

absl::StatusOr<float> RealField(const CaseMetadata& metadata, const std::string& field, float low,
                                float high) {
  return NumberField<float>(metadata, field, low, high);
}

absl::StatusOr<size_t> ChoiceField(const CaseMetadata& metadata, const std::string& field,
                                   std::initializer_list<const char*> choices) {
  const auto found = metadata.find(field);
  size_t index = 0;
  if (found != metadata.end()) {
    for (const char* choice : choices) {
      if (found->second == choice) return index;
      ++index;
    }
  }
  return InvalidField(field, absl::StrCat("must be one of ", absl::StrJoin(choices, ", ")));
}

absl::StatusOr<size_t> OptionalChoice(const CaseMetadata& metadata, const std::string& field,
                                      std::initializer_list<const char*> choices, size_t absent) {
  if (!metadata.contains(field)) return absent;
  return ChoiceField(metadata, field, choices);
}

absl::StatusOr<ResolvedAttention> AttentionFields(const CaseMetadata& metadata) {
  for (const char* field : {"offset", "z", "pinned_blocks", "floor"}) {
    if (!metadata.contains(field)) return InvalidField(field, "is missing");
  }
  AttentionChoice choice = {.mode = AttentionMode::kDynamic};
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    const auto found = metadata.find(field.name);
    if (found == metadata.end()) return;
    status.Update(SetField(field.name, field, found->second, choice.settings.*member));
  });
  RETURN_IF_ERROR(status);
  // What cases do not run.
  if (choice.settings.confirm) return InvalidField("confirm", "must be absent");
  if (choice.settings.sparse_prefill) return InvalidField("prefill", "must be absent");
  if (choice.settings.min_mass) return InvalidField("min_mass", "must be absent");
  ResolvedAttention resolved = ResolveAttention(choice, ModelConfig());
  AttentionOptions& options = resolved.options;
  ASSIGN_OR_RETURN(options.rescue_chunk, IntegerField(metadata, "rescue_chunk", 1, 1 << 20));
  ASSIGN_OR_RETURN(const size_t thresholds,
                   OptionalChoice(metadata, "thresholds", {"given", "relative"}, 0));
  options.relative = thresholds == 1;
  if (options.relative) {
    ASSIGN_OR_RETURN(options.relative_c, RealField(metadata, "relative_c", -100.0f, 100.0f));
  }
  return resolved;
}

absl::Status BlockFields(const CaseMetadata& metadata, KvGeometry& geometry) {
  ASSIGN_OR_RETURN(const int32_t block, IntegerField(metadata, "block_size", 1, 4096));
  ASSIGN_OR_RETURN(const int32_t sub_block, IntegerField(metadata, "sub_block", 0, block));
  if (sub_block > 0 && block % sub_block != 0) {
    return InvalidField("sub_block", "must be 0 or divide block_size");
  }
  geometry.block_size = block;
  geometry.sub_block = sub_block;
  return absl::OkStatus();
}

}  // namespace eta
