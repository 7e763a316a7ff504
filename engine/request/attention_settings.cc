// lint: untrusted-input, fuzz-covered
#include "engine/request/attention_settings.h"

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

// "z 1.5", "reads shared".
template <typename T>
std::string Phrase(const AttentionField& field, T value) {
  if constexpr (std::is_same_v<T, bool>) return absl::StrCat(field.name, " ", field.Word(value));
  return absl::StrCat(field.name, " ", value);
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

AttentionSettings ReadByRelative(const AttentionSettings& settings) {
  AttentionSettings read = settings;
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (!field.relative_reads) (read.*member).reset();
  });
  return read;
}

bool AsksOfSparseAttention(const AttentionSettings& settings) {
  bool asks = false;
  ForEachSetting([&](const AttentionField& field, auto member) {
    asks = asks || (!field.full_reads && settings.*member);
  });
  return asks;
}

// NaN is outside every range.
std::string Violation(const AttentionField& field, float value) {
  if (value <= field.high && (field.above_low ? value > field.low : value >= field.low)) return "";
  return field.above_low
             ? absl::StrCat("must be greater than ", field.low, " and at most ", field.high)
             : absl::StrCat("must be ", field.low, " to ", field.high);
}

absl::Status CheckBounds(const std::string& prefix, const AttentionSettings& settings) {
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (!status.ok() || field.IsChoice() || !(settings.*member)) return;
    const std::string violation = Violation(field, static_cast<float>(*(settings.*member)));
    if (!violation.empty()) status = InvalidField(absl::StrCat(prefix, field.name), violation);
  });
  return status;
}

absl::Status RefuseGated(const std::string& prefix, const AttentionSettings& settings) {
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (!status.ok() || *field.needs_gate == '\0' || !(settings.*member).value_or(0)) return;
    status = UnsupportedByModel(absl::StrCat(prefix, field.name), field.needs_gate);
  });
  return status;
}

}  // namespace eta
