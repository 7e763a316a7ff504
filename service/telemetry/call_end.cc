#include "service/telemetry/call_end.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "service/telemetry/label_names.h"

namespace eta {
namespace {

constexpr std::array<std::string_view, 22> kRejections = {
    "context_too_long",  "deadline_passed",      "deadline_queued",   "deadline_too_short",
    "draining",          "format_too_large",     "format_too_slow",   "formats_unavailable",
    "invalid_field",     "kv_pool_too_small",    "malformed_message", "memory_pressure",
    "message_too_large", "model_not_found",      "profile_mismatch",  "profile_not_found",
    "queue_full",        "tenant_calls",         "tenant_kv",         "tenant_tokens",
    "token_budget",      "unsupported_by_server"};
constexpr std::array<std::string_view, 8> kFailures = {
    "answer_invalid", "deadline_decoding", "device_error",     "draining",
    "internal_error", "memory_pressure",   "nonfinite_logits", "slow_consumer"};
constexpr std::array<std::string_view, 5> kTenantLimits = {
    "profile_quota", "tenant_calibrations", "tenant_calls", "tenant_kv", "tenant_tokens"};
// A calibration has run when it gives one of these.
constexpr std::array<std::string_view, 6> kBadSamples = {
    "cells_inconsistent", "no_scores",           "profile_loses",
    "scores_not_finite",  "scores_out_of_range", "target_unreachable"};

// The engine takes a request and may still refuse it: for its deadline, or in favour of others.
// One whose deadline passes there has run no more than one that still waits to be made tokens.
bool RefusedWhileItWaited(const std::string& reason) {
  return reason == "deadline_queued" || reason == "deadline_too_short" || reason == "queue_full" ||
         reason == "token_budget";
}

bool FailedElsewhere(absl::StatusCode code, const std::string& reason) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
      return reason != "draining";
    case absl::StatusCode::kDeadlineExceeded:
      return reason != "deadline_passed";
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      if (reason == "slow_consumer") return true;  // there was an answer
      return std::find(kBadSamples.begin(), kBadSamples.end(), reason) != kBadSamples.end();
  }
}

}  // namespace

CallEnd EndOf(const CallRecord& record) {
  if (record.status.ok()) return CallEnd::kOk;
  if (absl::IsCancelled(record.status)) return CallEnd::kCancelled;
  const std::string reason = ReasonLabel(record);
  const bool ran = record.method == "Generate" ? record.submitted && !RefusedWhileItWaited(reason)
                                               : FailedElsewhere(record.status.code(), reason);
  return ran ? CallEnd::kFailed : CallEnd::kRejected;
}

CallEnd CalibrationEndOf(const CallRecord& record) {
  const std::string reason = ReasonLabel(record);
  const bool stopped = reason == "deadline_decoding" || reason == "draining";
  return stopped ? CallEnd::kCancelled : EndOf(record);
}

std::string ReasonLabel(const CallRecord& record) {
  return absl::AsciiStrToLower(record.reason);
}

bool IsTenantLimit(std::string_view label) {
  return std::find(kTenantLimits.begin(), kTenantLimits.end(), label) != kTenantLimits.end();
}

std::span<const std::string_view> RejectionReasons() {
  return kRejections;
}

std::span<const std::string_view> FailureReasons() {
  return kFailures;
}

std::string_view Name(Stage stage) {
  constexpr std::string_view kNames[] = {"queued", "prefill", "decode"};
  return kNames[static_cast<size_t>(stage)];
}

Stage StageOf(const CallRecord& record) {
  const Timing& timing = record.outcome.timing;
  if (!record.submitted || timing.queue.count() == 0) return Stage::kQueued;
  return timing.first_token.count() == 0 ? Stage::kPrefill : Stage::kDecode;
}

std::chrono::nanoseconds LongestWait(const CallRecord& record) {
  const Timing& timing = record.outcome.timing;
  if (!record.submitted || timing.first_token.count() == 0) return record.duration;
  if (record.reader_behind) return timing.first_token;
  return std::max(timing.first_token, record.duration - timing.first_token - timing.decode);
}

std::string_view Name(DefaultProfileUse use) {
  constexpr std::string_view kNames[kDefaultProfileUses] = {"used", "absent", "unfit",
                                                            "unavailable"};
  return kNames[static_cast<size_t>(use)];
}

std::string_view Name(AttentionMode mode) {
  constexpr std::string_view kNames[] = {"full", "dynamic", "profile"};
  return kNames[static_cast<size_t>(mode)];
}

std::string_view FinishReasonOf(const CallRecord& record) {
  if (!record.submitted || !record.status.ok()) return Label::kNone;
  switch (record.outcome.reason) {
    case FinishReason::kStopToken:
      return "stop_token";
    case FinishReason::kEndOfText:
      return "end_of_text";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCutOff:
      return "cut_off";
  }
  return Label::kNone;
}

}  // namespace eta
