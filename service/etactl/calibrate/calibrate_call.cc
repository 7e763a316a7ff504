#include "service/etactl/calibrate/calibrate_call.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstdio>
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
constexpr milliseconds kCancelWithin{5000};
constexpr milliseconds kInterruptPeriod{20};

std::string NewCalibrationId() {
  std::random_device device;
  return absl::StrFormat("etactl-%08x%08x", device(), device());
}

void Cancel(const ServerFlags& server, const std::string& request_id) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCancelWithin);
  v1::CancelCalibrationRequest request;
  request.set_request_id(request_id);
  v1::CancelCalibrationResponse response;
  const auto stub = v1::EtaService::NewStub(Connect(server));
  const grpc::Status status = stub->CancelCalibration(&context, request, &response);
  if (status.ok() || ErrorReasonOf(status) == "CALIBRATION_NOT_FOUND") return;
  std::fprintf(stderr, "etactl: the calibration may go on: %s\n", DescribeError(status).c_str());
}

// False: interrupted.
bool Wait(milliseconds wait, CancelOnInterrupt& interrupt) {
  grpc::ClientContext none;  // without a call to follow a signal would end the process
  interrupt.Follow(&none);
  const auto until = std::chrono::steady_clock::now() + wait;
  while (!interrupt.happened() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kInterruptPeriod);
  }
  return !interrupt.Follow(nullptr);
}

}  // namespace

bool MayComeBack(const grpc::Status& status) {
  const std::string reason = ErrorReasonOf(status);
  switch (status.error_code()) {
    case grpc::UNAVAILABLE:
      return reason != "DEVICE_ERROR";
    case grpc::ABORTED:
      return reason == "REQUEST_IN_PROGRESS";
    case grpc::RESOURCE_EXHAUSTED:
      return RetrySecondsOf(status).has_value();
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
    const auto channel = Connect(server);  // with a backoff of its own
    const auto stub = v1::EtaService::NewStub(channel);
    const auto reader = stub->Calibrate(&context, request);
    const bool sent = channel->GetState(false) == GRPC_CHANNEL_READY;
    v1::CalibrateResponse message;
    while (reader->Read(&message)) {
      begun = true;
      wait = kFirstWait;
      if (message.has_profile()) end.profile = message.profile();
      end.lacks_index_metric = message.lacks_index_metric();
      events.on_message(message);
    }
    end.status = reader->Finish();
    // Whoever refuses a call answers with metadata; a connection that breaks has none.
    begun = begun || (sent && context.GetServerTrailingMetadata().empty());
    end.interrupted = interrupt.Follow(nullptr) && !end.status.ok();
    if (end.interrupted) break;
    const bool in_time = std::chrono::system_clock::now() + wait < deadline;
    if (!begun || !in_time || !MayComeBack(end.status)) return end;
    events.on_broken(end.status, wait);
    end.interrupted = !Wait(wait, interrupt);
    if (end.interrupted) break;
  }
  Cancel(server, request.request_id());
  return end;
}

}  // namespace eta::ctl
