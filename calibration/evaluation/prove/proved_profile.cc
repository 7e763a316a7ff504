#include "calibration/evaluation/prove/proved_profile.h"

#include <utility>

#include "calibration/evaluation/attention/evaluated_attention.h"
#include "engine/base/files/input_file.h"
#include "engine/base/files/output_file.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

constexpr const char* kProofLabel = "proof";

}  // namespace

absl::StatusOr<std::optional<PortableProfile>> ProfileToProve(const std::string& attention) {
  ASSIGN_OR_RETURN(const AttentionName name, ParseAttentionName(attention));
  const EvaluationSettings& own = name.settings;
  if (name.kind != AttentionKind::kProfile || own.attention != AttentionSettings() ||
      own.block_size || own.index) {
    return std::optional<PortableProfile>();
  }
  ASSIGN_OR_RETURN(const InputFile file,
                   InputFile::Open(name.file, {.allow_writable_by_others = true}));
  ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kMaxProfileJsonBytes));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("format")) {
    return std::optional<PortableProfile>();
  }
  ASSIGN_OR_RETURN(PortableProfile profile, ProfileFromJson(text));
  const auto& labels = profile.content.labels;
  RETURN_IF_ERROR(CheckProfileLabelCount(labels.size() + (labels.contains(kProofLabel) ? 0 : 1)));
  return std::optional(std::move(profile));
}

absl::Status WriteProvedProfile(PortableProfile profile, const std::string& label,
                                const std::string& path) {
  profile.content.labels[kProofLabel] = label;
  ASSIGN_OR_RETURN(const std::string text, ProfileToJson(profile));
  return WriteWholeFile(path, text);
}

}  // namespace eta
