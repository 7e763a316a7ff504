#include "calibration/evaluation/cases/case_metadata.h"

#include <charconv>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

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

absl::StatusOr<AttentionOptions> AttentionFields(const CaseMetadata& metadata) {
  ASSIGN_OR_RETURN(const float offset, RealField(metadata, "offset", -100.0f, 100.0f));
  ASSIGN_OR_RETURN(const float z, RealField(metadata, "z", 0.0f, 16.0f));
  ASSIGN_OR_RETURN(const int32_t pinned, IntegerField(metadata, "pinned_blocks", 0, 1 << 20));
  ASSIGN_OR_RETURN(const int32_t rescue, IntegerField(metadata, "rescue_chunk", 1, 1 << 20));
  ASSIGN_OR_RETURN(const size_t floor, ChoiceField(metadata, "floor", {"none", "uniform"}));
  ASSIGN_OR_RETURN(const int32_t sinks, metadata.contains("sink_blocks")
                                            ? IntegerField(metadata, "sink_blocks", 0, 1 << 20)
                                            : absl::StatusOr<int32_t>(0));
  ASSIGN_OR_RETURN(const size_t reads, OptionalChoice(metadata, "reads", {"own", "shared"}, 0));
  ASSIGN_OR_RETURN(const size_t thresholds,
                   OptionalChoice(metadata, "thresholds", {"given", "relative"}, 0));
  const bool relative = thresholds == 1;
  ASSIGN_OR_RETURN(const float relative_c, relative
                                               ? RealField(metadata, "relative_c", -100.0f, 100.0f)
                                               : absl::StatusOr<float>(0.0f));
  return AttentionOptions{.offset = offset,
                          .z = z,
                          .pinned_blocks = pinned,
                          .sink_blocks = sinks,
                          .rescue_chunk = rescue,
                          .uniform_floor = floor == 1,
                          .shared_reads = reads == 1,
                          .relative = relative,
                          .relative_c = relative_c};
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
