// lint: untrusted-input, fuzz-covered
#include "engine/request/attention_settings.h"

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

// NaN is outside every range.
template <typename T>
std::string Violation(const AttentionField& field, T value) {
  const auto low = static_cast<T>(field.low);
  const auto high = static_cast<T>(field.high);
  if (field.above_low) {
    if (value > low && value <= high) return "";
    return absl::StrCat("must be greater than ", low, " and at most ", high);
  }
  if (value >= low && value <= high) return "";
  return absl::StrCat("must be ", low, " to ", high);
}

}  // namespace

AttentionSettings AttentionSettings::Or(const AttentionSettings& other) const {
  AttentionSettings both = *this;
  ForEachSetting([&](const AttentionField&, auto member) {
    if (!(both.*member)) both.*member = other.*member;
  });
  return both;
}

std::string Describe(const AttentionSettings& settings, bool unusual) {
  std::string text;
  ForEachSetting([&](const AttentionField& field, auto member) {
    const auto& value = settings.*member;
    if (!value || (unusual && (!field.usual || static_cast<float>(*value) == *field.usual))) return;
    absl::StrAppend(&text, text.empty() ? "" : ", ", Phrase(field, *value));
  });
  return text;
}

bool AsksOfSparseAttention(const AttentionSettings& settings) {
  bool asks = false;
  ForEachSetting([&](const AttentionField& field, auto member) {
    asks = asks || (!field.full_reads && settings.*member);
  });
  return asks;
}

absl::Status CheckBounds(const std::string& prefix, const AttentionSettings& settings) {
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    using Value = typename std::remove_cvref_t<decltype(settings.*member)>::value_type;
    if constexpr (!std::is_same_v<Value, bool>) {
      if (!status.ok() || !(settings.*member)) return;
      const std::string violation = Violation(field, *(settings.*member));
      if (violation.empty()) return;
      status = InvalidField(absl::StrCat(prefix, field.name), violation);
    }
  });
  return status;
}

absl::Status RefuseGated(const std::string& prefix, const AttentionSettings& settings) {
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    using Value = typename std::remove_cvref_t<decltype(settings.*member)>::value_type;
    if constexpr (std::is_same_v<Value, bool>) {
      if (!status.ok() || *field.needs_gate == '\0' || !(settings.*member).value_or(false)) return;
      status = MakeError(absl::StatusCode::kFailedPrecondition,
                         absl::StrCat(prefix, field.name, ": ", field.needs_gate),
                         {.reason = "UNSUPPORTED_BY_MODEL"});
    }
  });
  return status;
}

}  // namespace eta
