#include "engine/request/profile_validation.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/request/request.h"

namespace eta {
namespace {

absl::Status Mismatch(const std::string& message, std::map<std::string, std::string> metadata) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "attention.profile: " + message,
                   {.reason = "PROFILE_MISMATCH", .metadata = std::move(metadata)});
}

// Element `at` of a table of a profile, or a number that it says, as element 0.
absl::Status BadNumber(const std::string& name, int64_t at, float value,
                       const std::string& violation) {
  const std::string element = absl::StrCat(name, "[", at, "]");
  return Mismatch(absl::StrCat(element, " ", violation),
                  {{"mismatch", element}, {"profile", absl::StrCat(value)}});
}

// Of a table [L, HQ] of a profile: its size, and every value in a range that has no NaN.
absl::Status CheckTable(const std::string& name, std::span<const float> table, size_t heads,
                        float low, float high) {
  if (table.size() != heads) {
    return Mismatch(absl::StrCat(name, " is not a table of the model's layers and heads"),
                    {{"mismatch", name},
                     {"profile", absl::StrCat(table.size())},
                     {"served", absl::StrCat(heads)}});
  }
  const auto bad = std::find_if(table.begin(), table.end(),
                                [&](float value) { return !(value >= low && value <= high); });
  if (bad == table.end()) return absl::OkStatus();
  return BadNumber(name, bad - table.begin(), *bad, absl::StrCat("must be ", low, " to ", high));
}

// One of the things that a profile was calibrated for, as it says and as they are here.
absl::Status CheckSame(const std::string& name, const std::string& profile,
                       const std::string& served) {
  if (profile == served) return absl::OkStatus();
  return Mismatch(absl::StrCat("was calibrated for another ", name),
                  {{"mismatch", name}, {"profile", profile}, {"served", served}});
}

// What a block's record says decides what the same threshold reads.
absl::Status CheckIndex(IndexKind profile, IndexKind served) {
  if (profile == served) return absl::OkStatus();
  return Mismatch(
      absl::StrCat("was calibrated on an index of kind ", std::string(Name(profile)),
                   ", and this server's is of kind ", std::string(Name(served)), " (--index)"),
      {{"mismatch", "index"},
       {"profile", std::string(Name(profile))},
       {"served", std::string(Name(served))}});
}

// Constants per head of a model that predicts thresholds, one relative threshold of any other.
absl::Status CheckThresholds(const ThresholdProfile& profile, const ModelConfig& config) {
  const std::map<std::string, std::string> kinds = {
      {"mismatch", "thresholds"},
      {"profile", profile.relative_c ? "relative" : "constants"},
      {"served", config.has_predictor ? "constants" : "relative"}};
  if (config.has_predictor && profile.relative_c) {
    return Mismatch("has a relative threshold, which is for models that predict none", kinds);
  }
  if (!config.has_predictor && !profile.relative_c) {
    return Mismatch(
        "has one constant for each head, and this model predicts no thresholds: a constant knows "
        "nothing of the row that it meets, and loses what the row looks for; calibrate anew for a "
        "relative threshold",
        kinds);
  }
  constexpr float kFinite = std::numeric_limits<float>::max();
  const size_t heads = static_cast<size_t>(config.num_layers) * config.num_query_heads;
  if (!profile.relative_c) {
    absl::Status status = CheckTable("thresholds", profile.thresholds, heads, -kFinite, kFinite);
    if (!profile.head_z.empty()) {
      status.Update(CheckTable("head_z", profile.head_z, heads, 0.0f, AttentionSettings::kMaxZ));
    }
    return status;
  }
  if (!config.has_relative_thresholds()) {
    return Mismatch("a relative threshold needs an index of kind outlier (--index=outlier)",
                    {{"mismatch", "index"}, {"profile", "outlier"}, {"served", "moment"}});
  }
  absl::Status status = CheckTable("thresholds", profile.thresholds, 0, -kFinite, kFinite);
  status.Update(CheckTable("head_z", profile.head_z, 0, 0.0f, AttentionSettings::kMaxZ));
  status.Update(CheckTable("relative_c", std::span(&*profile.relative_c, 1), 1,
                           -AttentionSettings::kMaxOffset, AttentionSettings::kMaxOffset));
  return status;
}

// What requests run with that say nothing else.
absl::Status CheckOperatingPoint(const ThresholdProfile& profile, const ModelConfig& config) {
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (field.IsChoice() || !(profile.settings.*member)) return;
    const auto value = static_cast<float>(*(profile.settings.*member));
    const std::string violation = Violation(field, value);
    if (!violation.empty()) status.Update(BadNumber(field.name, 0, value, violation));
  });
  if (profile.settings.temper_special.value_or(false) && config.gate == Gate::kNone) {
    status.Update(
        Mismatch("tempers special keys, which needs a model with a gate",
                 {{"mismatch", "special_keys"}, {"profile", "temper"}, {"served", "attend"}}));
  }
  return status;
}

}  // namespace

absl::Status ValidateProfile(const ThresholdProfile& profile, const EngineInfo& model) {
  const ModelConfig& config = model.config;
  if (profile.num_layers != config.num_layers ||
      profile.num_query_heads != config.num_query_heads) {
    return Mismatch("was made for a model of another shape",
                    {{"mismatch", "layers and heads"},
                     {"profile_layers", absl::StrCat(profile.num_layers)},
                     {"profile_query_heads", absl::StrCat(profile.num_query_heads)},
                     {"model_layers", absl::StrCat(config.num_layers)},
                     {"model_query_heads", absl::StrCat(config.num_query_heads)}});
  }
  absl::Status status = CheckThresholds(profile, config);
  status.Update(CheckOperatingPoint(profile, config));
  if (!profile.model_fingerprint.empty()) {
    status.Update(
        CheckSame("model_fingerprint", profile.model_fingerprint, model.model_fingerprint));
  }
  if (!profile.tokenizer_fingerprint.empty()) {
    status.Update(CheckSame("tokenizer_fingerprint", profile.tokenizer_fingerprint,
                            model.tokenizer_fingerprint));
  }
  if (profile.block_size != 0) {
    status.Update(
        CheckSame("block_size", absl::StrCat(profile.block_size), absl::StrCat(model.block_size)));
    status.Update(
        CheckSame("sub_block", absl::StrCat(profile.sub_block), absl::StrCat(model.sub_block)));
  }
  if (profile.index) status.Update(CheckIndex(*profile.index, model.index));
  return status;
}

std::vector<ProfileDifference> DifferencesOf(const ThresholdProfile& profile,
                                             const EngineInfo& model) {
  std::vector<ProfileDifference> differences;
  const auto add = [&](const char* what, const auto& calibrated, auto served) {
    if (!calibrated || *calibrated == served) return;
    differences.push_back({what, std::string(Name(*calibrated)), std::string(Name(served))});
  };
  add("kv_dtype", profile.kv_dtype, model.kv_dtype);
  add("weights", profile.weights, model.weights);
  return differences;
}

}  // namespace eta
