#include "service/etactl/calibrate/calibrate_call.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_format.h"
#include "eta/v1/service.grpc.pb.h"
#include "service/etactl/connection.h"
#include "service/etactl/error.h"

namespace eta::ctl {
namespace {

using std::chrono::milliseconds;
using SystemTime = std::chrono::system_clock::time_point;

constexpr std::chrono::minutes kServersDeadline{30};
constexpr milliseconds kFirstWait{500};
constexpr milliseconds kLongestWait{30'000};
// The deadline of the last caller ends a calibration.
constexpr milliseconds kEndWithin{1000};

std::string NewCalibrationId() {
  std::random_device device;
  return absl::StrFormat("etactl-%08x%08x", device(), device());
}

grpc::Status JoinUntil(const ServerFlags& server, const v1::CalibrateRequest& request,
                       SystemTime deadline) {
  grpc::ClientContext context;
  context.set_deadline(deadline);
  const auto stub = v1::EtaService::NewStub(Connect(server));
  const auto reader = stub->Calibrate(&context, request);
  v1::CalibrateResponse ignored;
  while (reader->Read(&ignored)) {
  }
  return reader->Finish();
}

}  // namespace

bool MayComeBack(const grpc::Status& status) {
  const std::string reason = ErrorReasonOf(status);
  switch (status.error_code()) {
    case grpc::UNAVAILABLE:
      return reason != "DEVICE_ERROR";
    case grpc::ABORTED:
      return reason == "REQUEST_IN_PROGRESS";
    case grpc::CANCELLED:
    case grpc::INTERNAL:
    case grpc::UNKNOWN:
      return reason.empty();  // of whatever lies between: a server names a reason
    default:
      return false;
  }
}

CalibrateEnd CallCalibrate(const ServerFlags& server, v1::CalibrateRequest& request,
                           std::optional<double> deadline_seconds, const CalibrateEvents& events) {
  if (request.request_id().empty()) request.set_request_id(NewCalibrationId());
  const SystemTime deadline =
      std::chrono::system_clock::now() +
      (deadline_seconds ? std::chrono::duration_cast<milliseconds>(
                              std::chrono::duration<double>(*deadline_seconds))
                        : milliseconds(kServersDeadline));
  CancelOnInterrupt interrupt;
  CalibrateEnd end;
  bool begun = false;
  for (milliseconds wait = kFirstWait;; wait = std::min(2 * wait, kLongestWait)) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    interrupt.Follow(&context);
    const auto stub = v1::EtaService::NewStub(Connect(server));  // with a backoff of its own
    const auto reader = stub->Calibrate(&context, request);
    v1::CalibrateResponse message;
    while (reader->Read(&message)) {
      begun = true;
      wait = kFirstWait;
      if (message.has_profile()) end.profile = message.profile();
      events.on_message(message);
    }
    end.status = reader->Finish();
    end.interrupted = interrupt.Follow(nullptr) && !end.status.ok();
    if (end.interrupted) {
      (void)JoinUntil(server, request, std::chrono::system_clock::now() + kEndWithin);
      return end;
    }
    const bool in_time = std::chrono::system_clock::now() + wait < deadline;
    if (!begun || !in_time || !MayComeBack(end.status)) return end;
    events.on_broken(end.status, wait);
    std::this_thread::sleep_for(wait);
  }
}

}  // namespace eta::ctl
