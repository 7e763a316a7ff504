// One Calibrate call: checks the request, begins its calibration or joins the one that runs with
// its request id, and answers what that comes to (calibration_run.h). A call that leaves does not
// end the calibration by itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eta/v1/calibrate.pb.h"
#include "grpcpp/alarm.h"
#include "service/calibrate/calibration_run.h"
#include "service/calls/service_context.h"
#include "service/calls/stream_reactor.h"

namespace eta {

inline constexpr size_t kMaxCalibrateBytes = size_t{8} << 20;  // of a message: it has the samples

class CalibrateReactor final : public StreamReactor<v1::CalibrateResponse>,
                               public CalibrationCaller {
 public:
  // Begins the call. `on_done` runs once, last of all, when gRPC has let go of the call.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& message,
                                                           const ServiceContext& service,
                                                           std::function<void()> on_done);

  void OnCancel() override;
  void OnDone() override;

  void OnProgress(const CalibrationProgress& progress) override;
  void OnEnd(const absl::StatusOr<ProfilePtr>& stored) override;

 private:
  CalibrateReactor(grpc::CallbackServerContext* context, const ServiceContext& service,
                   std::function<void()> on_done);
  std::shared_ptr<CalibrateReactor> Self();

  absl::Status Begin(const grpc::ByteBuffer& message);
  void Leave(CalibrationRun::Leaving why);
  bool Merge(v1::CalibrateResponse& last, const v1::CalibrateResponse& next) const override;

  const ServiceContext& service_;
  std::shared_ptr<CalibrationRun> run_;  // null: refused before it had one
  std::atomic<bool> ended_ = false;
  grpc::Alarm deadline_alarm_;
};

}  // namespace eta
