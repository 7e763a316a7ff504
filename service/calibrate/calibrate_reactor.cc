#include "service/calibrate/calibrate_reactor.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/promises/promises.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"
#include "service/calibrate/patient_put.h"
#include "service/calls/admission.h"
#include "service/profiles/convert_profile.h"
#include "service/profiles/profile_cache.h"
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
  if (!status.ok()) reactor->Conclude(status);
  return reactor.get();
}

absl::Status CalibrateReactor::Begin(const grpc::ByteBuffer& message) {
  const ServerOptions& options = service_.options;
  auto caller = Admit(context(), service_, {Role::kCalibrate}, record());
  if (!caller.ok()) return caller.status();
  const TaskOwner owner = OwnerOf(*caller);
  tenant_ = std::move(caller->tenant);
  auto entered = service_.ledger.Enter(*tenant_);
  if (!entered.ok()) return entered.status();
  lease() = *std::move(entered);
  if (service_.store == nullptr) return NoStore();
  auto request = ParseMessage<v1::CalibrateRequest>(message, kMaxCalibrateBytes);
  if (!request.ok()) return request.status();
  request_ = *std::move(request);
  // The profile may have to be put more than once, and without an id that could store it twice.
  if (request_.request_id().empty()) request_.set_request_id(NewRequestId());
  SetRequestId(IsRequestId(request_.request_id()) ? request_.request_id() : NewRequestId());

  const EngineInfo& info = service_.engine.info();
  if (request_.has_model()) {
    if (auto s = CheckModel(request_.model(), info.model_name); !s.ok()) return s;
  }
  auto plan =
      ToCalibration(request_, info, service_.engine.limits(), options.max_calibration_tokens);
  if (!plan.ok()) return plan.status();
  plan_ = *std::move(plan);
  plan_.job.id = request_id();
  plan_.job.tenant = tenant_->id();
  record().profile = plan_.put.name;
  auto claim = service_.calibrations.Claim(*tenant_, plan_.put.request_id, stop_);
  if (!claim.ok()) return claim.status();
  claim_ = *std::move(claim);

  if (SteadyDeadline(context()) == Clock::time_point::max()) {
    deadline_alarm_.Set(std::chrono::system_clock::now() + options.default_calibrate_deadline,
                        [self = Self()](bool expired) mutable {
                          const auto reactor = std::move(self);  // else they keep each other
                          if (!expired) return;
                          reactor->deadline_passed_ = true;
                          reactor->stop_.request_stop();
                        });
  }
  const bool posted = service_.store_calls.Post(owner, [self = Self()] { self->Prepare(); });
  return posted ? absl::OkStatus() : StoreCallsFull();
}

void CalibrateReactor::Prepare() {
  const absl::StatusOr<ProfilePtr> before =
      CatchOutOfMemory([&] { return service_.store->CheckPut(*tenant_, plan_.put); });
  if (!before.ok() || *before != nullptr) return Conclude(before);
  if (stop_.stop_requested()) return Conclude(Stopped());
  if (const absl::Status status = Run(); !status.ok()) Conclude(status);
}

absl::Status CalibrateReactor::Run() {
  auto place = service_.calibrations.Enter({.tenant = *tenant_,
                                            .profile = plan_.put.name,
                                            .request_id = request_id(),
                                            .started = Clock::now()},
                                           service_.limits.Of(*tenant_).max_calibrations);
  if (!place.ok()) return place.status();
  place_ = *std::move(place);
  const auto run = [self = Self()] {
    self->Conclude(CatchOutOfMemory([&] { return self->Make(); }));
  };
  if (service_.calibration_threads.Post({.name = tenant_->id()}, run)) return absl::OkStatus();
  return absl::InternalError("a calibration was let in and has no thread");
}

absl::StatusOr<ProfilePtr> CalibrateReactor::Make() {
  const SampleSizes sizes = SizesOf(request_, service_.engine.info());
  RETURN_IF_ERROR(lease().Charge(sizes.least_tokens));
  lease().Use(sizes.text_bytes / kTextBytesPerToken);
  auto samples = TokenizeSamples(request_, service_.engine, service_.options.max_calibration_tokens,
                                 stop_.get_token());
  if (stop_.stop_requested()) return Stopped();
  if (!samples.ok()) return samples.status();
  plan_.job.samples = *std::move(samples);
  int64_t tokens = 0;
  for (const auto& sample : plan_.job.samples) tokens += static_cast<int64_t>(sample.size());
  RETURN_IF_ERROR(lease().Charge(tokens));
  request_.Clear();  // megabytes, and the calibration may take long
  auto made = service_.calibrate(
      service_.engine, plan_.job,
      [this, tokens](const CalibrationProgress& progress) {
        // Begun is paid for, however it ends: it passes over the samples more than once.
        if (progress.sequences_done > 0) lease().Use(tokens);
        service_.calibrations.Report(*tenant_, request_id(), progress);
        Enqueue(ToMessage(progress));
      },
      stop_.get_token());
  if (stop_.stop_requested()) return Stopped();
  if (!made.ok()) return made.status();
  lease().Use(tokens);
  plan_.put.content = std::move(made->content);
  // Requests without a profile have it better, so that nobody gets it unasked.
  if (!plan_.job.allow_loss && DynamicDominates(plan_.put.content.evidence)) plan_.put.stage = true;
  auto stored = PutPatiently(*service_.store, *tenant_, plan_.put, stop_.get_token());
  const std::string& model = service_.engine.info().model_fingerprint;
  if (stored.ok() && IsNewestAtOnce(**stored, model)) service_.profiles->Add(**stored);
  return stored.ok() || !stop_.stop_requested() ? stored : StoppedBy(stored.status());
}

// What was taken is given back first: the client may call again as soon as it has its answer.
void CalibrateReactor::Conclude(const absl::StatusOr<ProfilePtr>& stored) {
  place_.Release();
  claim_.Release();
  if (stored.ok()) {
    record().profile_version = (*stored)->version;
    v1::CalibrateResponse message;
    *message.mutable_profile() = ToMessage(**stored);
    Enqueue(std::move(message));
  }
  End(stored.status());
}

absl::Status CalibrateReactor::Stopped() const {
  if (deadline_passed_) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the deadline passed while the profile was made",
                     {.reason = "DEADLINE_DECODING"});
  }
  if (service_.calibrations.draining()) return ServerDraining();
  return absl::CancelledError("the client cancelled the call, or left");
}

absl::Status CalibrateReactor::StoppedBy(const absl::Status& store) const {
  const absl::Status stopped = Stopped();
  // Whether it is stored decides what the client may do; a refusal for good is no blip.
  if (GetErrorDetail(store).reason == "OUTCOME_UNKNOWN" || !IsBlip(store)) return store;
  if (absl::IsCancelled(stopped)) return stopped;
  return MakeError(stopped.code(), absl::StrCat(stopped.message(), "; ", store.message()),
                   GetErrorDetail(stopped));
}

bool CalibrateReactor::Merge(v1::CalibrateResponse& last, const v1::CalibrateResponse& next) const {
  if (!last.has_progress() || !next.has_progress()) return false;
  last = next;
  return true;
}

void CalibrateReactor::OnCancel() {
  StreamReactor::OnCancel();
  if (EndsForDeadline()) deadline_passed_ = true;
  stop_.request_stop();
}

void CalibrateReactor::OnDone() {
  deadline_alarm_.Cancel();
  StreamReactor::OnDone();
}

}  // namespace eta
