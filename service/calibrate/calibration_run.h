// One calibration on the server: lets the store say whether it was made before or cannot be stored,
// runs the calibration on a thread of its own, and stores the profile. Its callers come and go:
// each hears of the progress and of the end for as long as it stays.
//
// The stages run one after another: on a thread for store calls, on a calibration thread. It is
// stopped when the server drains, when a client says so, when the deadline of its last caller
// passes, or when all callers have left and none came back in time; from then on nothing is stored.
// A profile that is being stored by then is answered as the store has it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/profile_store.h"
#include "engine/base/clock.h"
#include "engine/base/lease.h"
#include "engine/base/mutex.h"
#include "engine/base/tenant.h"
#include "eta/v1/calibrate.pb.h"
#include "grpcpp/alarm.h"
#include "service/calibrate/convert_calibrate.h"
#include "service/calls/service_context.h"
#include "service/limits/tenant_ledger.h"
#include "service/telemetry/call_record.h"

namespace eta {

// Whoever waits for a calibration. Called on any thread, by one at a time; must not block.
class CalibrationCaller {
 public:
  virtual ~CalibrationCaller() = default;
  virtual void OnProgress(const CalibrationProgress& progress) = 0;
  // Last, once, unless it left before.
  virtual void OnEnd(const absl::StatusOr<ProfilePtr>& stored) = 0;
};

// Thread-safe.
class CalibrationRun : public std::enable_shared_from_this<CalibrationRun> {
 public:
  // `record` is of the call that begins it, and has its names. `service` outlives all runs, which
  // are among its live calls.
  CalibrationRun(const ServiceContext& service, Tenant tenant, CalibrationPlan plan,
                 v1::CalibrateRequest request, const CallRecord& record);
  ~CalibrationRun();
  CalibrationRun(const CalibrationRun&) = delete;
  CalibrationRun& operator=(const CalibrationRun&) = delete;

  const std::string& payload_digest() const { return payload_digest_; }

  // Begins it, for the first caller. `claim` is given back before any caller hears of the end.
  void Start(const TaskOwner& owner, Lease claim);

  // From here on the caller hears of it, first of the newest progress. False: it is at its end.
  bool Join(const std::shared_ptr<CalibrationCaller>& caller);

  enum class Leaving : uint8_t { kForGood, kForDeadline };
  // True: the caller hears of nothing any more. False: it will hear of the end, which it may have
  // brought about: nobody else waits, and its deadline has passed.
  bool Leave(const CalibrationCaller& caller, Leaving why);

  enum class Stop : uint8_t { kNot, kCancelled, kDeadline, kDrain, kOrphaned };
  void RequestStop(Stop why);
  // True if nobody waits for it: from here on nobody joins it, and RequestStop must follow.
  bool GiveWay();
  // What a caller is told whose calibration was stopped, or goes on without it.
  static absl::Status Stopped(Stop why);

 private:
  void Prepare();
  absl::Status Enter();
  absl::StatusOr<ProfilePtr> Make();
  void Tell(const CalibrationProgress& progress);
  void Conclude(const absl::StatusOr<ProfilePtr>& stored);
  // Of one that was stopped while the store kept the profile from being stored.
  absl::Status StoppedBy(const absl::Status& store) const;
  // True if nobody can come.
  bool AwaitCallers() REQUIRES(mutex_);
  void Mark(Stop why);
  void EndOrphan(int64_t orphaned);

  const ServiceContext& service_;
  const Tenant tenant_;
  const std::string payload_digest_;
  const std::chrono::milliseconds orphan_timeout_;
  const Clock::time_point began_ = Clock::now();
  // Of whoever runs the stage:
  CalibrationPlan plan_;
  v1::CalibrateRequest request_;
  CallRecord record_;
  TenantLedger::Lease lease_;  // what it may cost, and no call
  Lease claim_;                // of its request id
  Lease place_;                // among those that work

  std::stop_source stop_;
  std::atomic<Stop> why_ = Stop::kNot;

  mutable Mutex mutex_;
  std::vector<std::shared_ptr<CalibrationCaller>> callers_ GUARDED_BY(mutex_);
  std::optional<CalibrationProgress> newest_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  int64_t orphaned_ GUARDED_BY(mutex_) = 0;  // how often its last caller left
  std::unique_ptr<grpc::Alarm> orphan_alarm_ GUARDED_BY(mutex_);
};

}  // namespace eta
