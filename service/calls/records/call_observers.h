// Hands the end of every call on to all who want to hear of it.
#pragma once

#include <utility>
#include <vector>

#include "service/telemetry/call_record.h"

namespace eta {

class CallObservers final : public CallObserver {
 public:
  // All of them must outlive this.
  explicit CallObservers(std::vector<CallObserver*> observers) : observers_(std::move(observers)) {}

  void OnCallEnd(const CallRecord& record) override {
    for (CallObserver* const observer : observers_) observer->OnCallEnd(record);
  }
  void OnCalibrationEnd(const CallRecord& record, bool alone) override {
    for (CallObserver* const observer : observers_) observer->OnCalibrationEnd(record, alone);
  }

 private:
  const std::vector<CallObserver*> observers_;
};

}  // namespace eta
