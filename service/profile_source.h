// Where the profiles that requests name come from.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/error.h"
#include "engine/threshold_profile.h"

namespace eta {

class ProfileSource {
 public:
  virtual ~ProfileSource() = default;
  // The newest version of a tenant's profile, an immutable snapshot. NOT_FOUND (PROFILE_NOT_FOUND)
  // for an unknown name, in the same words for a name that another tenant uses. Called on any
  // thread, must not block.
  virtual absl::StatusOr<std::shared_ptr<const ThresholdProfile>> Resolve(
      const std::string& tenant, const std::string& name) const = 0;
};

inline absl::Status ProfileNotFound(const std::string& name) {
  return MakeError(absl::StatusCode::kNotFound, "attention.profile: there is no such profile",
                   {.reason = "PROFILE_NOT_FOUND", .metadata = {{"profile", name}}});
}

// The source of a server without profiles.
class NoProfiles final : public ProfileSource {
 public:
  absl::StatusOr<std::shared_ptr<const ThresholdProfile>> Resolve(
      const std::string& /*tenant*/, const std::string& name) const override {
    return ProfileNotFound(name);
  }
};

}  // namespace eta
