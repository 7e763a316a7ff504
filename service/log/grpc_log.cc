#include "service/log/grpc_log.h"

#include <grpc/support/log.h>

#include <mutex>
#include <string>

namespace eta {
namespace {

// The library takes a plain function, and its threads may speak until the process ends.
std::mutex mutex;
Log* target = nullptr;  // guarded by mutex

LogLevel LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return LogLevel::kDebug;
    case GPR_LOG_SEVERITY_INFO:
      return LogLevel::kInfo;
    case GPR_LOG_SEVERITY_ERROR:
      break;
  }
  return LogLevel::kWarning;  // of its own work; what it means for ours is told elsewhere
}

void Hear(gpr_log_func_args* said) {
  const std::lock_guard lock(mutex);
  if (target == nullptr) return;
  target->Write(LogEvent(LevelOf(said->severity), "grpc", std::string("gRPC: ") + said->message)
                    .Add("file", said->file)
                    .Add("line", said->line));
}

void SetTarget(Log* log) {
  const std::lock_guard lock(mutex);
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
