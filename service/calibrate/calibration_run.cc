#include "service/calibrate/calibration_run.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/calibrate/promises.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "service/calibrate/calibrations.h"
#include "service/calibrate/patient_put.h"
#include "service/calls/live_calls.h"
#include "service/profiles/profile_cache.h"
#include "service/wire/grpc_status.h"
#include "service/wire/store_status.h"

namespace eta {

// Nobody can come back to a calibration whose id nobody was told.
CalibrationRun::CalibrationRun(const ServiceContext& service, Tenant tenant, CalibrationPlan plan,
                               v1::CalibrateRequest request, const CallRecord& record)
    : service_(service),
      tenant_(std::move(tenant)),
      payload_digest_(plan.put.payload_digest),
      orphan_timeout_(plan.joinable ? service.options.calibration_orphan_timeout
                                    : std::chrono::milliseconds(0)),
      plan_(std::move(plan)),
      request_(std::move(request)),
      record_(record),
      lease_(service.ledger.Open(tenant_)) {
  service_.live_calls.Begin();
}

CalibrationRun::~CalibrationRun() {
  lease_.Release();
  place_.Release();
  claim_.Release();
  service_.live_calls.End();
}

void CalibrationRun::Start(const TaskOwner& owner, Lease claim) {
  claim_ = std::move(claim);
  if (!service_.store_calls.Post(owner, [self = shared_from_this()] { self->Prepare(); })) {
    Conclude(StoreCallsFull());
  }
}

bool CalibrationRun::Join(const std::shared_ptr<CalibrationCaller>& caller) {
  const MutexLock lock(mutex_);
  if (ended_ || why_ != Stop::kNot) return false;
  orphan_alarm_.reset();
  callers_.push_back(caller);
  if (newest_) caller->OnProgress(*newest_);
  return true;
}

bool CalibrationRun::Leave(const CalibrationCaller& caller, Leaving why) {
  bool last = false;
  bool stop = false;
  {
    const MutexLock lock(mutex_);
    const auto left = std::find_if(callers_.begin(), callers_.end(),
                                   [&](const auto& other) { return other.get() == &caller; });
    if (left == callers_.end()) return false;
    last = callers_.size() == 1 && why == Leaving::kForDeadline;
    if (last) {
      Mark(Stop::kDeadline);
    } else {
      callers_.erase(left);
      stop = callers_.empty() && AwaitCallers();
    }
  }
  if (last || stop) stop_.request_stop();
  return !last;
}

bool CalibrationRun::AwaitCallers() {
  if (orphan_timeout_.count() == 0) {
    Mark(Stop::kOrphaned);
    return true;
  }
  const int64_t orphaned = ++orphaned_;
  orphan_alarm_ = std::make_unique<grpc::Alarm>();
  orphan_alarm_->Set(std::chrono::system_clock::now() + orphan_timeout_,
                     [self = shared_from_this(), orphaned](bool expired) mutable {
                       const auto run = std::move(self);  // else they keep each other
                       if (expired) run->EndOrphan(orphaned);
                     });
  return false;
}

void CalibrationRun::EndOrphan(int64_t orphaned) {
  {
    const MutexLock lock(mutex_);
    if (!callers_.empty() || orphaned != orphaned_) return;
    Mark(Stop::kOrphaned);
  }
  stop_.request_stop();
}

// The first reason is the one that is told.
void CalibrationRun::Mark(Stop why) {
  Stop none = Stop::kNot;
  why_.compare_exchange_strong(none, why);
}

// No lock may be held: what is stopped runs at once.
void CalibrationRun::RequestStop(Stop why) {
  Mark(why);
  stop_.request_stop();
}

bool CalibrationRun::GiveWay() {
  const MutexLock lock(mutex_);
  if (ended_ || !callers_.empty()) return false;
  Mark(Stop::kOrphaned);
  return true;
}

void CalibrationRun::Prepare() {
  const absl::StatusOr<ProfilePtr> before =
      CatchOutOfMemory([&] { return service_.store->CheckPut(tenant_, plan_.put); });
  if (!before.ok() || *before != nullptr) return Conclude(before);
  if (stop_.stop_requested()) return Conclude(Stopped(why_));
  if (const absl::Status status = Enter(); !status.ok()) Conclude(status);
}

absl::Status CalibrationRun::Enter() {
  ASSIGN_OR_RETURN(place_,
                   service_.calibrations.Enter({.tenant = tenant_,
                                                .profile = plan_.put.name,
                                                .request_id = plan_.put.request_id,
                                                .started = Clock::now()},
                                               service_.limits.Of(tenant_).max_calibrations));
  const auto run = [self = shared_from_this()] {
    self->Conclude(CatchOutOfMemory([&] { return self->Make(); }));
  };
  if (service_.calibration_threads.Post({.name = tenant_.id()}, run)) return absl::OkStatus();
  // Those that gave way their places may not have ended.
  place_.Release();
  return service_.calibrations.Busy();
}

absl::StatusOr<ProfilePtr> CalibrationRun::Make() {
  const SampleSizes sizes = SizesOf(request_, service_.engine.info());
  RETURN_IF_ERROR(lease_.Charge(sizes.least_tokens));
  lease_.Use(sizes.text_bytes / kTextBytesPerToken);
  auto samples = TokenizeSamples(request_, service_.engine, service_.options.max_calibration_tokens,
                                 stop_.get_token());
  if (stop_.stop_requested()) return Stopped(why_);
  if (!samples.ok()) return samples.status();
  plan_.job.samples = *std::move(samples);
  int64_t tokens = 0;
  for (const auto& sample : plan_.job.samples) tokens += static_cast<int64_t>(sample.size());
  RETURN_IF_ERROR(lease_.Charge(tokens));
  request_.Clear();  // megabytes, and the calibration may take long
  auto made = service_.calibrate(
      service_.engine, plan_.job,
      [this, tokens](const CalibrationProgress& progress) {
        // Begun is paid for, however it ends: it passes over the samples more than once.
        if (progress.sequences_done > 0) lease_.Use(tokens);
        Tell(progress);
      },
      stop_.get_token());
  if (stop_.stop_requested()) return Stopped(why_);
  if (!made.ok()) return made.status();
  lease_.Use(tokens);
  plan_.put.content = std::move(made->content);
  // Requests without a profile have it better, so that nobody gets it unasked.
  if (ToBeStaged(plan_.job, plan_.put.content.evidence)) plan_.put.stage = true;
  auto stored = PutPatiently(*service_.store, tenant_, plan_.put, stop_.get_token());
  const std::string& model = service_.engine.info().model_fingerprint;
  if (stored.ok() && IsNewestAtOnce(**stored, model)) service_.profiles->Add(**stored);
  return stored.ok() || !stop_.stop_requested() ? stored : StoppedBy(stored.status());
}

void CalibrationRun::Tell(const CalibrationProgress& progress) {
  service_.calibrations.Report(tenant_, plan_.put.request_id, progress);
  const MutexLock lock(mutex_);
  newest_ = progress;
  for (const auto& caller : callers_) caller->OnProgress(progress);
}

// What was taken is given back first: a client may call again as soon as it has its answer.
void CalibrationRun::Conclude(const absl::StatusOr<ProfilePtr>& stored) {
  lease_.Release();
  place_.Release();
  claim_.Release();
  std::vector<std::shared_ptr<CalibrationCaller>> callers;
  std::unique_ptr<grpc::Alarm> alarm;  // its callback may be waiting for the mutex
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    callers = std::exchange(callers_, {});
    alarm = std::move(orphan_alarm_);
  }
  record_.status = stored.status();
  record_.reason = ReasonOf(stored.status());
  record_.duration = Clock::now() - began_;
  if (stored.ok()) record_.profile_version = (*stored)->version;
  service_.calls.OnCalibrationEnd(record_, callers.empty());
  for (const auto& caller : callers) caller->OnEnd(stored);
}

absl::Status CalibrationRun::Stopped(Stop why) {
  switch (why) {
    case Stop::kDeadline:
      return MakeError(absl::StatusCode::kDeadlineExceeded,
                       "the deadline passed while the profile was made",
                       {.reason = "DEADLINE_DECODING"});
    case Stop::kDrain:
      return ServerDraining();
    case Stop::kCancelled:
      return absl::CancelledError("the calibration was cancelled (CancelCalibration)");
    case Stop::kOrphaned:
    case Stop::kNot:
      break;
  }
  return absl::CancelledError("the client cancelled the call, or left");
}

absl::Status CalibrationRun::StoppedBy(const absl::Status& store) const {
  const absl::Status stopped = Stopped(why_);
  // Whether it is stored decides what the client may do; a refusal for good is no blip.
  if (GetErrorDetail(store).reason == "OUTCOME_UNKNOWN" || !IsBlip(store)) return store;
  if (absl::IsCancelled(stopped)) return stopped;
  return MakeError(stopped.code(), absl::StrCat(stopped.message(), "; ", store.message()),
                   GetErrorDetail(stopped));
}

}  // namespace eta
