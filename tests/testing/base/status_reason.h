// What tests ask of errors.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"

namespace eta {

// The reason that a client is told; empty where none is.
inline std::string Reason(const absl::Status& status) {
  return GetErrorDetail(status).reason;
}

// An error of this code, with this reason, on this field, or with these words in its message.
MATCHER_P2(FailsFor, code, reason, "") {
  *result_listener << "reason '" << Reason(arg) << "'";
  return arg.code() == code && Reason(arg) == reason;
}
MATCHER_P2(FailsOn, code, field, "") {
  *result_listener << "field '" << GetErrorDetail(arg).field << "'";
  return arg.code() == code && GetErrorDetail(arg).field == field;
}
MATCHER_P2(FailsSaying, code, words, "") {
  return arg.code() == code && absl::StrContains(arg.message(), words);
}

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

}  // namespace eta
