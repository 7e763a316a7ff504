// A Calibrate call that outlives its connections: a request id lets it come back to the calibration
// that it began, for as long as the server keeps that (--calibration_orphan_timeout).
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <functional>
#include <optional>

#include "eta/v1/calibrate.pb.h"
#include "service/etactl/server.h"

namespace eta::ctl {

struct CalibrateEnd {
  grpc::Status status;
  std::optional<v1::Profile> profile;
  bool lacks_index_metric = false;  // the model that the profile is for
  bool interrupted = false;         // by Ctrl-C, which ends the calibration too
};

struct CalibrateEvents {
  std::function<void(const v1::CalibrateResponse&)> on_message;
  // The connection broke; it asks again after the wait.
  std::function<void(const grpc::Status& status, std::chrono::milliseconds wait)> on_broken;
};

// Whether a call that ended so may find its calibration again: its connection or its server went
// away, an end that others brought about is not over yet, or there is no room for now. (Until the
// server has found out that a connection is dead, its call holds a place of the tenant's.)
bool MayComeBack(const grpc::Status& status);

// Gives the request an id if it has none. A call that was sent and broke off comes back until the
// deadline (30 minutes by default), after 0.5 s, 1 s and so on up to every 30 s. One that a server
// refuses before does not.
CalibrateEnd CallCalibrate(const ServerFlags& server, v1::CalibrateRequest& request,
                           std::optional<double> deadline_seconds, const CalibrateEvents& events);

}  // namespace eta::ctl
