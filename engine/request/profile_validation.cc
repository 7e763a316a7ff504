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
  const std::string element = absl::StrCat(name, "[", bad - table.begin(), "]");
  return Mismatch(absl::StrCat(element, " must be ", low, " to ", high),
                  {{"mismatch", element}, {"profile", absl::StrCat(*bad)}});
}

// One of the things that a profile was calibrated for, as it says and as they are here.
absl::Status CheckSame(const std::string& name, const std::string& profile,
                       const std::string& served) {
  if (profile == served) return absl::OkStatus();
  return Mismatch(absl::StrCat("was calibrated for another ", name),
                  {{"mismatch", name}, {"profile", profile}, {"served", served}});
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
  constexpr float kFinite = std::numeric_limits<float>::max();
  const size_t heads = static_cast<size_t>(config.num_layers) * config.num_query_heads;
  absl::Status status = CheckTable("thresholds", profile.thresholds, heads, -kFinite, kFinite);
  if (!profile.head_z.empty()) {
    status.Update(CheckTable("head_z", profile.head_z, heads, 0.0f, AttentionChoice::kMaxZ));
  }
  const float z = profile.z.value_or(0.0f);
  status.Update(CheckTable("z", std::span(&z, 1), 1, 0.0f, AttentionChoice::kMaxZ));
  const float offset = profile.offset.value_or(0.0f);
  status.Update(CheckTable("offset", std::span(&offset, 1), 1, -AttentionChoice::kMaxOffset,
                           AttentionChoice::kMaxOffset));
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
  return status;
}

}  // namespace eta
