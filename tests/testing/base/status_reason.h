// What tests ask of errors.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/base/error.h"

namespace eta {

// The reason that a client is told; empty where none is.
inline std::string Reason(const absl::Status& status) {
  return GetErrorDetail(status).reason;
}

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

}  // namespace eta
