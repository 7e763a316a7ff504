// One line of the log for every call that ends, and one more for a calibration.
#pragma once

#include "service/log/log.h"
#include "service/telemetry/call_record.h"

namespace eta {

class CallLog final : public CallObserver {
 public:
  // `log` must outlive this.
  explicit CallLog(Log& log) : log_(log) {}

  // Names, codes and numbers; what a client sent is no part of it but for the names that it chose.
  void OnCallEnd(const CallRecord& record) override;

 private:
  Log& log_;
};

}  // namespace eta
