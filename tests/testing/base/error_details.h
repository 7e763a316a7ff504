// Unpacks the google.rpc details of a failed call.
#pragma once

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace eta::testing {

template <typename Detail>
std::optional<Detail> DetailOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& any : details.details()) {
    Detail detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

inline std::string ReasonOf(const grpc::Status& status) {
  const auto info = DetailOf<google::rpc::ErrorInfo>(status);
  return info ? info->reason() : "";
}

// A value of the error's metadata; empty if there is none with that key.
inline std::string MetadataOf(const grpc::Status& status, const std::string& key) {
  const auto info = DetailOf<google::rpc::ErrorInfo>(status);
  if (!info || info->metadata().count(key) == 0) return "";
  return info->metadata().at(key);
}

inline std::string FieldOf(const grpc::Status& status) {
  const auto bad = DetailOf<google::rpc::BadRequest>(status);
  return bad && bad->field_violations_size() == 1 ? bad->field_violations(0).field() : "";
}

// A call that failed with this code and reason, or this code and field; says how it failed else.
MATCHER_P2(FailsWith, code, reason, "") {
  *result_listener << "code " << arg.error_code() << ", reason '" << ReasonOf(arg)
                   << "': " << arg.error_message();
  return arg.error_code() == code && ReasonOf(arg) == reason;
}

MATCHER_P2(FailsAt, code, field, "") {
  *result_listener << "code " << arg.error_code() << ", field '" << FieldOf(arg)
                   << "': " << arg.error_message();
  return arg.error_code() == code && FieldOf(arg) == field;
}

}  // namespace eta::testing
