#include "calibration/evaluation/attention/profile_file.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_json.h"
#include "calibration/profiles/threshold_profile_of.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_check.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxLayers = 1024;
constexpr size_t kMaxHeads = 4096;

absl::Status AppendLayer(const nlohmann::json& layer, size_t heads, ThresholdProfile& profile) {
  const std::string field = absl::StrCat("thresholds[", profile.num_layers, "]");
  if (!layer.is_array() || layer.empty() || layer.size() > kMaxHeads) {
    return InvalidField(field, absl::StrCat("must be a list of 1 to ", kMaxHeads, " numbers"));
  }
  if (layer.size() != heads) {
    return InvalidField(field, "must be as long as the first layer's list");
  }
  for (const nlohmann::json& value : layer) {
    const float threshold =
        value.is_number() ? value.get<float>() : std::numeric_limits<float>::quiet_NaN();
    if (!std::isfinite(threshold)) return InvalidField(field, "holds what is no finite number");
    profile.thresholds.push_back(threshold);
  }
  ++profile.num_layers;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ThresholdProfile> ReadProfileFile(const std::string& path) {
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path, {.allow_writable_by_others = true}));
  ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kMaxBytes));
  RETURN_IF_ERROR(CheckJson("profile", text, {.max_bytes = kMaxBytes, .max_depth = 3}));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidField("profile", "is not a JSON object");
  if (json.contains("format")) {
    ASSIGN_OR_RETURN(const PortableProfile exported, ProfileFromJson(text));
    return *ThresholdProfileOf(exported.content, exported.name, exported.version);
  }

  for (const auto& [key, value] : json.items()) {
    if (key != "name" && key != "thresholds") {
      return InvalidField("profile", "holds a field that is neither name nor thresholds");
    }
  }
  if (!json.contains("name") || !json["name"].is_string() ||
      json["name"].get_ref<const std::string&>().empty() ||
      json["name"].get_ref<const std::string&>().size() > kMaxNameBytes) {
    return InvalidField("name", absl::StrCat("must be text of 1 to ", kMaxNameBytes, " bytes"));
  }
  if (!json.contains("thresholds") || !json["thresholds"].is_array() ||
      json["thresholds"].empty() || json["thresholds"].size() > kMaxLayers) {
    return InvalidField("thresholds",
                        absl::StrCat("must be a list of 1 to ", kMaxLayers, " layers"));
  }

  ThresholdProfile profile;
  profile.name = json["name"].get<std::string>();
  const nlohmann::json& layers = json["thresholds"];
  for (const nlohmann::json& layer : layers) {
    RETURN_IF_ERROR(AppendLayer(layer, layers.front().size(), profile));
  }
  profile.num_query_heads = static_cast<int32_t>(layers.front().size());
  return profile;
}

}  // namespace eta
