#include "calibration/profiles/profile_store.h"

#include "absl/strings/numbers.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {

absl::StatusOr<ProfileReference> ParseProfileReference(const std::string& field,
                                                       std::string_view text) {
  const size_t at = text.find('@');
  ProfileReference reference{.name = std::string(text.substr(0, at)), .selector = Newest()};
  RETURN_IF_ERROR(CheckProfileName(field, reference.name));
  if (at == std::string_view::npos) return reference;
  const std::string which(text.substr(at + 1));
  int64_t version = 0;
  const bool digits = !which.empty() && which.find_first_not_of("0123456789") == which.npos;
  if (digits && which.front() != '0' && absl::SimpleAtoi(which, &version)) {
    reference.selector = version;
    return reference;
  }
  if (!CheckProfileAlias(field, which).ok()) {
    return InvalidField(field, "must have a version or an alias after the @");
  }
  reference.selector = which;
  return reference;
}

}  // namespace eta
