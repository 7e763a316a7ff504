// The trail of who was turned away and who changed profiles: a line for each, whatever the log's
// level is. Names, codes and reasons only; neither secrets nor texts.
#pragma once

#include "service/log/log.h"
#include "service/telemetry/call_record.h"

namespace eta {

class AuditLog final : public CallObserver {
 public:
  // `log` must outlive this.
  explicit AuditLog(Log& log) : log_(log) {}

  // Event "denied" for UNAUTHENTICATED and PERMISSION_DENIED; event "profile_change" for every end
  // of a call that changes profiles, also one that failed: its outcome may not be known. A log that
  // cannot keep up keeps those that may have changed something last.
  void OnCallEnd(const CallRecord& record) override;
  // Event "profile_change" where no call has one.
  void OnCalibrationEnd(const CallRecord& record, bool alone) override;

 private:
  void WriteChange(const CallRecord& record);

  Log& log_;
};

}  // namespace eta
