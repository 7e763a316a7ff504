#include "calibration/evaluation/attention/evaluated_attention.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int32_t kLeastBlock = 4;  // tokens of a block, and what they are a multiple of
constexpr int32_t kMostBlock = 128;

// Whether all of the text is one.
template <typename T>
bool ReadNumber(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <typename T>
absl::Status SetNumber(const std::string& name, const std::string& text, T low, T high,
                       std::optional<T>& out) {
  T value{};
  // The condition is written so that NaN fails.
  if (!ReadNumber(text, value) || !(value >= low && value <= high)) {
    return InvalidField(name, absl::StrCat("must be a number from ", low, " to ", high));
  }
  out = value;
  return absl::OkStatus();
}

template <typename T>
absl::Status SetNumber(const std::string& name, const AttentionField& field,
                       const std::string& text, std::optional<T>& out) {
  T value{};
  const bool whole = ReadNumber(text, value);
  const std::string violation = Violation(field, whole ? static_cast<float>(value) : NAN);
  if (!violation.empty()) return InvalidField(name, violation);
  out = value;
  return absl::OkStatus();
}

absl::Status SetChoice(const std::string& name, const std::string& text, const char* no,
                       const char* yes, std::optional<bool>& out) {
  if (text != no && text != yes) {
    return InvalidField(name, absl::StrCat("must be ", no, " or ", yes));
  }
  out = text == yes;
  return absl::OkStatus();
}

// As the flags are called.
std::vector<std::string> SettingNames() {
  std::vector<std::string> names;
  ForEachSetting([&](const AttentionField& field, auto) {
    if (IsEvaluated(field)) names.push_back(FlagOf(field));
  });
  names.insert(names.end(), {"block_size", "index"});
  return names;
}

// A number behind the name of a way of attending.
struct Argument {
  float low = 0.0f;
  float high = 0.0f;
  std::optional<float> usual = std::nullopt;  // where the name ends before it
};
constexpr Argument kShare = {0.0f, 1.0f};
constexpr Argument kConstant = {-100.0f, 100.0f};
constexpr Argument kWindow = {1e-6f, 1e6f};
constexpr Argument kStride = {1.0f, 1e6f};
constexpr Argument kDenseLayers = {0.0f, 1e6f, 2.0f};  // Quest's, by its authors' code

struct Numbered {
  const char* name;
  AttentionKind kind;
  Argument first;
  std::optional<Argument> second = std::nullopt;
};
constexpr Numbered kNumbered[] = {{"relative", AttentionKind::kRelative, kConstant},
                                  {"topk", AttentionKind::kTopK, kShare},
                                  {"quest", AttentionKind::kQuest, kShare, kDenseLayers},
                                  {"oracle", AttentionKind::kOracle, kConstant},
                                  {"constants", AttentionKind::kConstants, kShare},
                                  {"window", AttentionKind::kWindow, kWindow},
                                  {"streaming", AttentionKind::kStreaming, kWindow},
                                  {"bigbird", AttentionKind::kBigBird, kWindow, kStride},
                                  {"h2o", AttentionKind::kH2o, kWindow, kShare},
                                  {"h2o_blocks", AttentionKind::kH2oBlocks, kWindow, kShare}};

// Takes `+name=value` off the end of `text`. False if it does not end in a setting.
bool TakeSetting(std::string& text, std::string& name, std::string& value) {
  const size_t plus = text.rfind('+');
  if (plus == std::string::npos) return false;
  const std::string last = text.substr(plus + 1);
  const size_t equals = last.find('=');
  if (equals == std::string::npos) return false;
  name = last.substr(0, equals);
  const std::vector<std::string> names = SettingNames();
  if (std::ranges::find(names, name) == names.end()) return false;
  value = last.substr(equals + 1);
  text.resize(plus);
  return true;
}

absl::Status SetArgument(const std::string& text, const Argument& argument,
                         std::optional<float>& out) {
  return SetNumber("attention", text, argument.low, argument.high, out);
}

absl::Status ParseWay(const std::string& text, AttentionName& out) {
  const size_t colon = text.find(':');
  const std::string way = text.substr(0, colon);
  const std::string argument = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (text == "full" || text == "dynamic") {
    out.kind = text == "full" ? AttentionKind::kFull : AttentionKind::kDynamic;
    return absl::OkStatus();
  }
  if (way == "profile" && !argument.empty()) {
    out.kind = AttentionKind::kProfile;
    out.file = argument;
    return absl::OkStatus();
  }
  for (const Numbered& numbered : kNumbered) {
    if (way != numbered.name) continue;
    out.kind = numbered.kind;
    // The model has a constant of its own.
    if (colon == std::string::npos && numbered.kind == AttentionKind::kRelative) {
      return absl::OkStatus();
    }
    if (!numbered.second) return SetArgument(argument, numbered.first, out.number);
    const size_t between = argument.find(':');
    if (between == std::string::npos && numbered.second->usual) {
      out.second = numbered.second->usual;
      return SetArgument(argument, numbered.first, out.number);
    }
    if (between == std::string::npos) {
      return InvalidField("attention", absl::StrCat("'", way, "' takes two numbers"));
    }
    RETURN_IF_ERROR(SetArgument(argument.substr(0, between), numbered.first, out.number));
    return SetArgument(argument.substr(between + 1), *numbered.second, out.second);
  }
  return InvalidField("attention",
                      absl::StrCat("'", text,
                                   "' must be full, dynamic, relative[:C], profile:FILE, "
                                   "topk:SHARE, quest:SHARE[:DENSE], oracle:C, constants:UNION, "
                                   "window:W, streaming:W, bigbird:W:STRIDE, h2o:W:SHARE or "
                                   "h2o_blocks:W:SHARE, and settings such as +reads=own"));
}

}  // namespace

std::string RangeOf(const AttentionField& field) {
  if (field.IsChoice()) return absl::StrCat(field.no, "|", field.yes);
  return absl::StrCat(field.low, "..", field.high);
}

absl::Status SetField(const std::string& name, const AttentionField& field, const std::string& text,
                      std::optional<float>& out) {
  return SetNumber(name, field, text, out);
}

absl::Status SetField(const std::string& name, const AttentionField& field, const std::string& text,
                      std::optional<int32_t>& out) {
  return SetNumber(name, field, text, out);
}

absl::Status SetField(const std::string& name, const AttentionField& field, const std::string& text,
                      std::optional<bool>& out) {
  return SetChoice(name, text, field.no, field.yes, out);
}

EvaluationSettings EvaluationSettings::Or(const EvaluationSettings& other) const {
  return {.attention = attention.Or(other.attention),
          .block_size = block_size ? block_size : other.block_size,
          .index = index ? index : other.index};
}

absl::Status SetAttention(const std::string& name, const std::string& value,
                          EvaluationSettings& settings) {
  std::optional<absl::Status> set;
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (IsEvaluated(field) && FlagOf(field) == name)
      set = SetField(name, field, value, settings.attention.*member);
  });
  if (set) return *set;
  if (name == "block_size") {
    RETURN_IF_ERROR(SetNumber(name, value, kLeastBlock, kMostBlock, settings.block_size));
    if (*settings.block_size % kLeastBlock == 0) return absl::OkStatus();
    return InvalidField(name, absl::StrCat("must be a multiple of ", kLeastBlock));
  }
  if (name == "index") {
    std::optional<bool> outlier;
    RETURN_IF_ERROR(SetChoice(name, value, "moment", "outlier", outlier));
    settings.index = *outlier ? IndexKind::kOutlier : IndexKind::kMoment;
    return absl::OkStatus();
  }
  return InvalidField(name, absl::StrCat("must be one of ", absl::StrJoin(SettingNames(), ", ")));
}

absl::StatusOr<AttentionName> ParseAttentionName(const std::string& text) {
  AttentionName out;
  std::string way = text;
  std::string name;
  std::string value;
  while (TakeSetting(way, name, value)) {
    EvaluationSettings one;
    RETURN_IF_ERROR(SetAttention(name, value, one));
    out.settings = out.settings.Or(one);
  }
  RETURN_IF_ERROR(ParseWay(way, out));
  return out;
}

}  // namespace eta
