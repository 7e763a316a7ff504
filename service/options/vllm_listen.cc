// lint: untrusted-input, fuzz-covered
#include "service/options/vllm_listen.h"

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_store.h"
#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

constexpr std::string_view kProfilePrefix = "profile:";
constexpr size_t kMaxModelNameBytes = 255;

absl::Status BadListen(const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--vllm_listen: ", why));
}

bool IsModelName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxModelNameBytes && IsPrintable(name);
}

}  // namespace

absl::StatusOr<AttentionName> ParseAttentionName(std::string_view text) {
  if (text == "full") return AttentionName{.mode = AttentionMode::kFull};
  if (text == "dynamic") return AttentionName{.mode = AttentionMode::kDynamic};
  if (text.starts_with(kProfilePrefix)) {
    std::string reference(text.substr(kProfilePrefix.size()));
    RETURN_IF_ERROR(ParseProfileReference("profile", reference).status());
    return AttentionName{.mode = AttentionMode::kProfile, .profile = std::move(reference)};
  }
  return absl::InvalidArgumentError("must be full, dynamic or profile:NAME");
}

std::string Name(const AttentionName& attention) {
  if (!attention.mode) return "";
  switch (*attention.mode) {
    case AttentionMode::kFull:
      return "full";
    case AttentionMode::kDynamic:
      return "dynamic";
    case AttentionMode::kProfile:
      break;
  }
  return absl::StrCat(std::string(kProfilePrefix), attention.profile);
}

absl::StatusOr<VllmListen> ParseVllmListen(const std::string& text) {
  const size_t equals = text.rfind('=');
  VllmListen listen{.address = text.substr(0, equals)};
  if (equals == std::string::npos) return listen;
  const std::string rest = text.substr(equals + 1);
  const size_t colon = rest.find(':');
  listen.name = rest.substr(0, colon);
  if (!IsModelName(listen.name)) {
    return BadListen(absl::StrCat("after = stands the model's name there, 1 to ",
                                  kMaxModelNameBytes, " visible ASCII characters"));
  }
  if (colon == std::string::npos) return listen;
  const auto attention = ParseAttentionName(rest.substr(colon + 1));
  if (!attention.ok())
    return BadListen("after the model's name may stand :full, :dynamic or :profile:NAME");
  listen.attention = *attention;
  return listen;
}

}  // namespace eta
