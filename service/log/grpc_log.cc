#include "service/log/grpc_log.h"

#include <grpc/support/log.h>

#include <string>
#include <string_view>

#include "engine/base/mutex.h"

namespace eta {
namespace {

// The library takes a plain function, and its threads may speak until the process ends.
Mutex mutex;
Log* target GUARDED_BY(mutex) = nullptr;

LogLevel LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return LogLevel::kDebug;
    case GPR_LOG_SEVERITY_INFO:
      return LogLevel::kInfo;
    case GPR_LOG_SEVERITY_ERROR:
      break;
  }
  return LogLevel::kWarning;  // an error of gRPC's own work; its effect on ours is logged elsewhere
}

// The beginning of gRPC 1.51's message for a failed TLS handshake. OpenSSL's reason follows; the
// peer is not named.
constexpr std::string_view kHandshakeFailed = "Handshake failed with fatal error ";

void Hear(gpr_log_func_args* said) {
  const MutexLock lock(mutex);
  if (target == nullptr) return;
  const std::string_view message = said->message;
  if (message.starts_with(kHandshakeFailed)) {
    const std::string why(message.substr(kHandshakeFailed.size()));
    target->Write(LogEvent(LogLevel::kWarning, "denied")
                      .Add("why", "TLS handshake: " + why)
                      .Rank(LogRank::kAudit));
    return;
  }
  target->Write(LogEvent(LevelOf(said->severity), "grpc", std::string("gRPC: ") + said->message)
                    .Add("file", said->file)
                    .Add("line", said->line));
}

void SetTarget(Log* log) {
  const MutexLock lock(mutex);
  target = log;
}

}  // namespace

GrpcLog::GrpcLog(Log& log) {
  SetTarget(&log);
  gpr_set_log_function(&Hear);
}

GrpcLog::~GrpcLog() {
  SetTarget(nullptr);
}

}  // namespace eta
