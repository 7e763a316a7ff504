#include "service/calls/records/audit_log.h"

#include <string>
#include <utility>

#include "service/identity/identity.h"
#include "service/wire/grpc_status.h"

namespace eta {
namespace {

bool ChangesProfiles(std::string_view method) {
  for (const std::string_view change : {"Calibrate", "SetProfileAlias", "PromoteProfile",
                                        "DeleteProfileVersion", "DeleteProfile", "ImportProfile"}) {
    if (method == change) return true;
  }
  return false;
}

// What a call that ended so may have left behind. Refusals cost their caller nothing and may be
// many.
bool MayHaveChanged(const CallRecord& record) {
  if (record.tenant.empty()) return false;  // refused before it was known whose call it is
  if (ReasonOf(record.status) == "SLOW_CONSUMER") return true;  // what was made was not taken
  switch (record.status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
      return false;
    default:
      return true;
  }
}

LogEvent EventOf(std::string_view name, LogLevel level, const CallRecord& record) {
  LogEvent event(level, name);
  event.Add("method", record.method)
      .Add("code", absl::StatusCodeToString(record.status.code()))
      .Add("reason", ReasonOf(record.status))
      .Add("credential", record.credential)
      .Add("tenant", record.tenant)
      .Add("peer", record.peer)
      .Add("request_id", record.request_id)
      .Add("trace_id", record.trace_id);
  return event;
}

}  // namespace

void AuditLog::OnCallEnd(const CallRecord& record) {
  const absl::StatusCode code = record.status.code();
  if (code == absl::StatusCode::kUnauthenticated || code == absl::StatusCode::kPermissionDenied) {
    LogEvent event = EventOf("denied", LogLevel::kWarning, record);
    log_.Write(std::move(event.Add("why", DenialOf(record.status)).Rank(LogRank::kAudit)));
  } else if (ChangesProfiles(record.method)) {
    WriteChange(record);
  }
}

void AuditLog::OnCalibrationEnd(const CallRecord& record, bool alone) {
  if (alone) WriteChange(record);
}

void AuditLog::WriteChange(const CallRecord& record) {
  LogEvent event = EventOf("profile_change", LogLevel::kInfo, record);
  event.Add("profile", record.profile);
  event.Add("alias", record.profile_alias);
  const bool named = record.profile_version > 0 || !record.profile_alias.empty();
  if (named) event.Add("profile_version", record.profile_version);
  log_.Write(std::move(event.Rank(MayHaveChanged(record) ? LogRank::kChange : LogRank::kAudit)));
}

}  // namespace eta
