// One Calibrate call: checks the request, lets the store say whether it was answered before or
// cannot be stored, runs the calibration on a thread of its own, stores the profile and answers it.
//
// The stages run one after another: on gRPC's thread, on a thread for store calls, on a calibration
// thread. Leaving, passing the deadline, or the server's drain stops the calibration; from then on
// nothing is stored. A profile that is being stored by then is answered as the store has it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/lease.h"
#include "eta/v1/calibrate.pb.h"
#include "grpcpp/alarm.h"
#include "service/calibrate/calibrations.h"
#include "service/calibrate/convert_calibrate.h"
#include "service/calls/service_context.h"
#include "service/calls/stream_reactor.h"

namespace eta {

inline constexpr size_t kMaxCalibrateBytes = size_t{8} << 20;  // of a message: it has the samples

class CalibrateReactor final : public StreamReactor<v1::CalibrateResponse> {
 public:
  // Begins the call. `on_done` runs once, last of all, when gRPC has let go of the call.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& message,
                                                           const ServiceContext& service,
                                                           std::function<void()> on_done);

  void OnCancel() override;
  void OnDone() override;

 private:
  CalibrateReactor(grpc::CallbackServerContext* context, const ServiceContext& service,
                   std::function<void()> on_done);
  std::shared_ptr<CalibrateReactor> Self();

  absl::Status Begin(const grpc::ByteBuffer& message);
  void Prepare();
  absl::Status Run();
  absl::StatusOr<ProfilePtr> Make();
  void Conclude(const absl::StatusOr<ProfilePtr>& stored);
  absl::Status Stopped() const;
  // Likewise while the store kept the profile from being stored.
  absl::Status StoppedBy(const absl::Status& store) const;
  bool Merge(v1::CalibrateResponse& last, const v1::CalibrateResponse& next) const override;

  const ServiceContext& service_;
  std::optional<Tenant> tenant_;
  v1::CalibrateRequest request_;
  CalibrationPlan plan_;
  Lease claim_;  // of the call and its request id
  Lease place_;  // among those that run

  std::stop_source stop_;
  std::atomic<bool> deadline_passed_ = false;
  grpc::Alarm deadline_alarm_;
};

}  // namespace eta
