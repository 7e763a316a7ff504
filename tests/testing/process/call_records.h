// A CallObserver that keeps the records it is told.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "service/telemetry/call_record.h"

namespace eta::testing {

class CallRecords final : public CallObserver {
 public:
  void OnCallEnd(const CallRecord& record) override {
    const std::lock_guard lock(mutex_);
    records_.push_back(record);
    changed_.notify_all();
  }

  void OnCalibrationEnd(const CallRecord& record, bool alone) override {
    const std::lock_guard lock(mutex_);
    calibrations_.push_back({record, alone});
    changed_.notify_all();
  }

  struct CalibrationEnd {
    CallRecord record;
    bool alone = false;
  };
  std::vector<CalibrationEnd> Calibrations() const {
    const std::lock_guard lock(mutex_);
    return calibrations_;
  }
  // As Await.
  std::vector<CalibrationEnd> AwaitCalibrations(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10),
                      [&] { return calibrations_.size() >= count; });
    return calibrations_;
  }

  std::vector<CallRecord> All() const {
    const std::lock_guard lock(mutex_);
    return records_;
  }
  // Returns the records once there are `count`; after 10 s those that there are.
  std::vector<CallRecord> Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return records_.size() >= count; });
    return records_;
  }
  // The newest record; an empty one if there is none.
  CallRecord Last() const {
    const std::lock_guard lock(mutex_);
    return records_.empty() ? CallRecord() : records_.back();
  }
  void Clear() {
    const std::lock_guard lock(mutex_);
    records_.clear();
    calibrations_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CallRecord> records_;
  std::vector<CalibrationEnd> calibrations_;
};

}  // namespace eta::testing
