#include "calibration/evaluation/attention/evaluated_attention.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/request.h"

namespace eta {
namespace {

constexpr int32_t kMaxBlocks = 1024;  // pinned blocks, sink blocks
constexpr int32_t kLeastBlock = 4;    // tokens of a block, and what they are a multiple of
constexpr int32_t kMostBlock = 128;

template <typename T>
absl::Status SetNumber(const std::string& name, const std::string& text, T low, T high,
                       std::optional<T>& out) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  // The condition is written so that NaN fails.
  if (!whole || !(value >= low && value <= high)) {
    return InvalidField(name, absl::StrCat("must be a number from ", low, " to ", high));
  }
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

// A number behind the name of a way of attending.
struct Argument {
  float low = 0.0f;
  float high = 0.0f;
};
constexpr Argument kShare = {0.0f, 1.0f};
constexpr Argument kConstant = {-100.0f, 100.0f};
constexpr Argument kWindow = {1e-6f, 1e6f};
constexpr Argument kStride = {1.0f, 1e6f};

struct Numbered {
  const char* name;
  AttentionKind kind;
  Argument first;
  std::optional<Argument> second = std::nullopt;
};
constexpr Numbered kNumbered[] = {{"relative", AttentionKind::kRelative, kConstant},
                                  {"topk", AttentionKind::kTopK, kShare},
                                  {"quest", AttentionKind::kQuest, kShare},
                                  {"oracle", AttentionKind::kOracle, kConstant},
                                  {"constants", AttentionKind::kConstants, kShare},
                                  {"window", AttentionKind::kWindow, kWindow},
                                  {"streaming", AttentionKind::kStreaming, kWindow},
                                  {"bigbird", AttentionKind::kBigBird, kWindow, kStride},
                                  {"h2o", AttentionKind::kH2o, kWindow, kShare}};

// Takes `+name=value` off the end of `text`. False if it does not end in a setting.
bool TakeSetting(std::string& text, std::string& name, std::string& value) {
  const size_t plus = text.rfind('+');
  if (plus == std::string::npos) return false;
  const std::string last = text.substr(plus + 1);
  const size_t equals = last.find('=');
  if (equals == std::string::npos) return false;
  name = last.substr(0, equals);
  const bool known =
      std::ranges::any_of(kAttentionSettings, [&](const char* setting) { return name == setting; });
  if (!known) return false;
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
    if (between == std::string::npos) {
      return InvalidField("attention", absl::StrCat("'", way, "' takes two numbers"));
    }
    RETURN_IF_ERROR(SetArgument(argument.substr(0, between), numbered.first, out.number));
    return SetArgument(argument.substr(between + 1), *numbered.second, out.second);
  }
  return InvalidField("attention",
                      absl::StrCat("'", text,
                                   "' must be full, dynamic, relative[:C], profile:FILE, "
                                   "topk:SHARE, quest:SHARE, oracle:C, constants:UNION, window:W, "
                                   "streaming:W, bigbird:W:STRIDE or h2o:W:SHARE, and settings "
                                   "such as +reads=own"));
}

}  // namespace

AttentionSettings AttentionSettings::Or(const AttentionSettings& other) const {
  AttentionSettings both = *this;
  const auto fill = [](auto& own, const auto& others) {
    if (!own) own = others;
  };
  fill(both.offset, other.offset);
  fill(both.z, other.z);
  fill(both.uniform_floor, other.uniform_floor);
  fill(both.pinned_blocks, other.pinned_blocks);
  fill(both.sink_blocks, other.sink_blocks);
  fill(both.shared_reads, other.shared_reads);
  fill(both.confirm, other.confirm);
  fill(both.sparse_prefill, other.sparse_prefill);
  fill(both.temper_special, other.temper_special);
  fill(both.block_size, other.block_size);
  fill(both.index, other.index);
  return both;
}

bool AttentionSettings::of_sparse_attention() const {
  return z || uniform_floor || pinned_blocks || sink_blocks || shared_reads || confirm ||
         sparse_prefill;
}

absl::Status SetAttention(const std::string& name, const std::string& value,
                          AttentionSettings& settings) {
  constexpr float kMaxOffset = AttentionChoice::kMaxOffset;
  if (name == "offset") return SetNumber(name, value, -kMaxOffset, kMaxOffset, settings.offset);
  if (name == "z") return SetNumber(name, value, 0.0f, AttentionChoice::kMaxZ, settings.z);
  if (name == "floor") return SetChoice(name, value, "none", "uniform", settings.uniform_floor);
  if (name == "pinned_blocks") {
    return SetNumber(name, value, 0, kMaxBlocks, settings.pinned_blocks);
  }
  if (name == "sink_blocks") return SetNumber(name, value, 0, kMaxBlocks, settings.sink_blocks);
  if (name == "reads") return SetChoice(name, value, "own", "shared", settings.shared_reads);
  if (name == "confirm") return SetChoice(name, value, "false", "true", settings.confirm);
  if (name == "prefill_attention")
    return SetChoice(name, value, "full", "sparse", settings.sparse_prefill);
  if (name == "special_keys") {
    return SetChoice(name, value, "attend", "temper", settings.temper_special);
  }
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
  return InvalidField(name,
                      absl::StrCat("must be one of ", absl::StrJoin(kAttentionSettings, ", ")));
}

absl::StatusOr<AttentionName> ParseAttentionName(const std::string& text) {
  AttentionName out;
  std::string way = text;
  std::string name;
  std::string value;
  while (TakeSetting(way, name, value)) {
    AttentionSettings one;
    RETURN_IF_ERROR(SetAttention(name, value, one));
    out.settings = out.settings.Or(one);
  }
  RETURN_IF_ERROR(ParseWay(way, out));
  return out;
}

}  // namespace eta
