#include "service/calibrate/calibrate_reactor.h"

#include <chrono>
#include <memory>
#include <utility>

#include "calibration/calibrate/calibration_job.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"
#include "service/calibrate/calibrations.h"
#include "service/calibrate/convert_calibrate.h"
#include "service/calls/admission.h"
#include "service/profiles/convert_profile.h"
#include "service/wire/request_id.h"
#include "service/wire/store_status.h"

namespace eta {

CalibrateReactor::CalibrateReactor(grpc::CallbackServerContext* context,
                                   const ServiceContext& service, std::function<void()> on_done)
    : StreamReactor(context, service, "Calibrate", service.engine.limits().max_congestion,
                    std::move(on_done)),
      service_(service) {}

std::shared_ptr<CalibrateReactor> CalibrateReactor::Self() {
  return std::static_pointer_cast<CalibrateReactor>(shared_from_this());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CalibrateReactor::Start(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer& message,
    const ServiceContext& service, std::function<void()> on_done) {
  const std::shared_ptr<CalibrateReactor> reactor(
      new CalibrateReactor(context, service, std::move(on_done)));
  reactor->KeepAlive();
  const absl::Status status = CatchOutOfMemory([&] { return reactor->Begin(message); });
  if (!status.ok()) reactor->OnEnd(status);
  return reactor.get();
}

absl::Status CalibrateReactor::Begin(const grpc::ByteBuffer& message) {
  const ServerOptions& options = service_.options;
  ASSIGN_OR_RETURN(auto caller, Admit(context(), service_, {Role::kCalibrate}, record()));
  const TaskOwner owner = OwnerOf(caller);
  const Tenant tenant = std::move(caller.tenant);
  ASSIGN_OR_RETURN(lease(), service_.ledger.Enter(tenant));
  if (service_.store == nullptr) return NoStore();
  ASSIGN_OR_RETURN(auto request, ParseMessage<v1::CalibrateRequest>(message, kMaxCalibrateBytes));
  const bool joinable = !request.request_id().empty();
  // The profile may have to be put more than once, and without an id that could store it twice.
  if (!joinable) request.set_request_id(NewRequestId());
  SetRequestId(IsRequestId(request.request_id()) ? request.request_id() : NewRequestId());

  const EngineInfo& info = service_.engine.info();
  if (request.has_model()) {
    RETURN_IF_ERROR(CheckModel(request.model(), info.model_name));
  }
  ASSIGN_OR_RETURN(auto plan, ToCalibration(request, info, service_.engine.limits(),
                                            options.max_calibration_tokens));
  plan.joinable = joinable;
  plan.job.id = request_id();
  plan.job.tenant = tenant.id();
  record().profile = plan.put.name;
  record().of_calibration = true;
  auto joined = service_.calibrations.Join(tenant, plan.put, Self(), [&] {
    return std::make_shared<CalibrationRun>(service_, tenant, std::move(plan), std::move(request),
                                            record());
  });
  if (!joined.ok()) {
    // But for a server that drains, one runs that this call may not join.
    record().of_calibration = !absl::IsUnavailable(joined.status());
    return joined.status();
  }
  run_ = joined->run;
  if (SteadyDeadline(context()) == Clock::time_point::max()) {
    deadline_alarm_.Set(std::chrono::system_clock::now() + options.default_calibrate_deadline,
                        [self = Self()](bool expired) mutable {
                          const auto reactor = std::move(self);  // else they keep each other
                          if (expired) reactor->Leave(CalibrationRun::Leaving::kForDeadline);
                        });
  }
  if (joined->claim) run_->Start(owner, std::move(*joined->claim));
  return absl::OkStatus();
}

void CalibrateReactor::OnProgress(const CalibrationProgress& progress) {
  Enqueue(ToMessage(progress));
}

void CalibrateReactor::OnEnd(const absl::StatusOr<ProfilePtr>& stored) {
  if (ended_.exchange(true)) return;
  if (stored.ok()) {
    record().profile_version = (*stored)->version;
    v1::CalibrateResponse message;
    *message.mutable_profile() = ToMessage(**stored);
    message.set_lacks_index_metric(LacksIndexMetric(service_.engine.info()));
    Enqueue(std::move(message));
  }
  End(stored.status());
}

void CalibrateReactor::Leave(CalibrationRun::Leaving why) {
  if (run_ == nullptr || !run_->Leave(*this, why)) return;
  const bool deadline = why == CalibrationRun::Leaving::kForDeadline;
  OnEnd(CalibrationRun::Stopped(deadline ? CalibrationRun::Stop::kDeadline
                                         : CalibrationRun::Stop::kOrphaned));
}

bool CalibrateReactor::Merge(v1::CalibrateResponse& last, const v1::CalibrateResponse& next) const {
  if (!last.has_progress() || !next.has_progress()) return false;
  last = next;
  return true;
}

void CalibrateReactor::OnCancel() {
  StreamReactor::OnCancel();
  Leave(EndsForDeadline() ? CalibrationRun::Leaving::kForDeadline
                          : CalibrationRun::Leaving::kForGood);
}

void CalibrateReactor::OnDone() {
  deadline_alarm_.Cancel();
  StreamReactor::OnDone();
}

}  // namespace eta
