#include "service/wire/grpc_status.h"

#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "eta/v1/errors.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace eta {
namespace {

constexpr size_t kMaxMessageBytes = 1024;

constexpr double kSpread = 0.2;

double DrawJitter() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0.0, 1.0)(generator);
}

std::chrono::milliseconds Spread(std::chrono::milliseconds delay, double jitter) {
  return delay + std::chrono::milliseconds(
                     std::llround(static_cast<double>(delay.count()) * kSpread * jitter));
}

// As ErrorInfo, logs, metrics and manuals spell it: without its enum's name.
std::string ReasonName(v1::ErrorReason reason) {
  return v1::ErrorReason_Name(reason).substr(std::string_view("ERROR_REASON_").size());
}

// The reason for a status that was made without one.
v1::ErrorReason UsualReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kCancelled:
      return v1::ERROR_REASON_CLIENT_CANCELLED;
    case absl::StatusCode::kInvalidArgument:
      return v1::ERROR_REASON_INVALID_FIELD;
    default:
      return v1::ERROR_REASON_INTERNAL_ERROR;
  }
}

// The owner of the limit that was hit; empty if the reason is no limit.
std::string QuotaSubject(const std::string& reason) {
  for (const v1::ErrorReason quota : {v1::ERROR_REASON_PROFILE_QUOTA, v1::ERROR_REASON_TENANT_CALLS,
                                      v1::ERROR_REASON_TENANT_TOKENS, v1::ERROR_REASON_TENANT_KV,
                                      v1::ERROR_REASON_TENANT_CALIBRATIONS}) {
    if (reason == ReasonName(quota)) return "tenant";
  }
  for (const v1::ErrorReason bound :
       {v1::ERROR_REASON_QUEUE_FULL, v1::ERROR_REASON_TOKEN_BUDGET,
        v1::ERROR_REASON_CALIBRATION_BUSY, v1::ERROR_REASON_WATCHERS_FULL}) {
    if (reason == ReasonName(bound)) return "server";
  }
  return "";
}

void AddResource(const ErrorDetail& detail, const std::string& type, const std::string& key,
                 const std::string& message, google::rpc::Status& out) {
  google::rpc::ResourceInfo resource;
  resource.set_resource_type(type);
  if (const auto name = detail.metadata.find(key); name != detail.metadata.end()) {
    resource.set_resource_name(name->second);
  }
  resource.set_description(message);
  out.add_details()->PackFrom(resource);
}

}  // namespace

std::string ReasonOf(const absl::Status& status) {
  if (status.ok()) return "";
  std::string reason = GetErrorDetail(status).reason;
  return reason.empty() ? ReasonName(UsualReason(status.code())) : reason;
}

WireStatus ToWireStatus(const absl::Status& status, std::optional<double> jitter) {
  if (status.ok()) return {};
  WireStatus result;
  ErrorDetail detail = GetErrorDetail(status);
  if (detail.reason.empty()) detail.reason = ReasonOf(status);
  const std::string message =
      absl::StrCat(status.message(), detail.unlogged.empty() ? "" : ": ", detail.unlogged)
          .substr(0, kMaxMessageBytes);

  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);

  google::rpc::ErrorInfo info;
  info.set_reason(detail.reason);
  info.set_domain(kErrorDomain);
  info.mutable_metadata()->insert(detail.metadata.begin(), detail.metadata.end());
  details.add_details()->PackFrom(info);

  if (!detail.field.empty()) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(detail.field);
    violation->set_description(message);
    details.add_details()->PackFrom(bad_request);
  }
  if (const std::string subject = QuotaSubject(detail.reason); !subject.empty()) {
    google::rpc::QuotaFailure quota;
    auto* violation = quota.add_violations();
    violation->set_subject(subject);
    const auto name = detail.metadata.find("quota");
    violation->set_description(
        name == detail.metadata.end() ? message : absl::StrCat(name->second, ": ", message));
    details.add_details()->PackFrom(quota);
  }
  if (detail.reason == ReasonName(v1::ERROR_REASON_MODEL_NOT_FOUND)) {
    AddResource(detail, "eta.v1/Model", "model", message, details);
  }
  if (detail.reason == ReasonName(v1::ERROR_REASON_PROFILE_NOT_FOUND)) {
    AddResource(detail, "eta.v1/Profile", "profile", message, details);
  }
  if (detail.retry_after) {
    const auto delay = Spread(*detail.retry_after, jitter ? *jitter : DrawJitter());
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(delay.count() / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay.count() % 1000) * 1000000);
    details.add_details()->PackFrom(retry);
    result.retry_pushback = std::to_string(delay.count());
  } else if (status.code() == absl::StatusCode::kResourceExhausted) {
    result.retry_pushback = "-1";
  }

  result.status = grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                               details.SerializeAsString());
  return result;
}

}  // namespace eta
