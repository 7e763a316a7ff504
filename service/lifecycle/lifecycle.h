// The life of the server's process, from its flags to its exit code: one function for each step, in
// the order in which main.cc calls them. What a step opens stays open until this is destroyed, the
// newest first.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"
#include "engine/format/helper/format_helper.h"
#include "engine/front/engine.h"
#include "kernels/system/failpoint_file.h"
#include "service/calls/records/audit_log.h"
#include "service/calls/records/call_log.h"
#include "service/kv_events/kv_event_publisher.h"
#include "service/limits/tenant_limits.h"
#include "service/log/grpc_log.h"
#include "service/log/log.h"
#include "service/options/flags.h"
#include "service/process/failure_watch.h"
#include "service/process/stop_signals.h"
#include "service/server/server.h"
#include "service/stats/page/metrics_exposer.h"
#include "service/stats/page/status_collector.h"
#include "service/telemetry/telemetry.h"
#include "service/tracing/span_exporter.h"

namespace eta {

class Lifecycle {
 public:
  // Blocks the signals of a stop: make it before any thread begins.
  explicit Lifecycle(Flags flags) : flags_(std::move(flags)), signals_(kLastSeconds) {}
  ~Lifecycle();
  Lifecycle(const Lifecycle&) = delete;
  Lifecycle& operator=(const Lifecycle&) = delete;

  // While the process may still fork, and has no threads and no secrets.
  void ForkFormatHelper();
  // Gives up what the process does not need. Before the first thread, the log's.
  void Harden();
  void OpenLog();

  // Each says why the server cannot start; errors name their flag.
  absl::Status CheckFlags();
  absl::Status OpenLimits();
  absl::Status OpenStore();
  absl::Status ServeMetrics();
  absl::Status PublishKvEvents();
  absl::Status LoadEngine();
  absl::Status StartServer();
  // Logs the error of one of them; the exit code.
  int BadStart(const absl::Status& why);

  // Returns when a signal asks the process to end, or when it cannot go on.
  void AwaitStop();
  // Lets what runs end: it has the time of the flags, or none where the server cannot go on or once
  // a second signal comes. Where a step never ends, it ends the process instead of returning.
  void Drain();
  // Closes what is open, the metrics page last.
  void Stop();
  int exit_code() const;

 private:
  // For a process that may come to no end by itself.
  static constexpr unsigned kLastSeconds = 10;
  // The same where a step hangs: what can still end, ends at once.
  static constexpr unsigned kHungSeconds = 3;

  // The server cannot answer any more: there is nothing to wait for.
  bool CannotServe() const { return failure_ && *failure_ != Failure::kStoreFailed; }
  void EndAtOnce();
  // Whether the drain must be hurried: a signal came that asks for it, or a step hangs.
  bool MustHurry();

  Flags flags_;
  StopSignals signals_;
  absl::StatusOr<bool> filtered_ = false;  // the filter of system calls is in force
  absl::StatusOr<std::unique_ptr<FormatHelper>> format_helper_ = nullptr;  // null: none is needed
  std::unique_ptr<FailpointFile> failpoints_;
  std::optional<Log> log_;
  std::optional<GrpcLog> grpc_log_;
  std::unique_ptr<TenantLimits> limits_;
  std::unique_ptr<ProfileStore> profiles_;
  std::optional<Telemetry> telemetry_;
  std::shared_ptr<StatusCollector> collector_;
  std::unique_ptr<MetricsExposer> metrics_;         // null: no page
  std::optional<KvEventFeed> kv_events_;            // nothing: nobody asks for them
  std::unique_ptr<KvEventPublisher> kv_publisher_;  // null: not over ZeroMQ
  std::unique_ptr<Engine> engine_;
  std::optional<CallLog> call_log_;
  std::optional<AuditLog> audit_log_;
  std::unique_ptr<SpanExporter> spans_;  // null: spans are sent nowhere
  std::unique_ptr<Server> server_;
  std::optional<FailureWatch> watch_;

  std::optional<Failure> failure_;  // why it ended by itself
  bool device_lost_ = false;        // when it ended
};

}  // namespace eta
