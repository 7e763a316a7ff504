// Counts what the server does, since it started: tokens, latencies and attention from the engine's
// steps, ends of calls from whoever answers them. Stats and the Prometheus page show these numbers,
// and they are exact: the integers of the answers add up to them.
//
// Thread-safe. A step is booked under a lock that readers hold only while they copy numbers, some
// tens of microseconds.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/request/observer.h"
#include "service/telemetry/call_record.h"
#include "service/telemetry/head_totals.h"
#include "service/telemetry/label_names.h"
#include "service/telemetry/latency_window.h"
#include "service/telemetry/telemetry_figures.h"
#include "service/telemetry/telemetry_options.h"
#include "service/telemetry/telemetry_snapshot.h"

namespace eta {

class Telemetry final : public Observer, public CallObserver {
 public:
  // Above these, what comes counts as of tenant "other", in calls also of profile "other".
  static constexpr size_t kMaxAccounts = 1024;
  static constexpr size_t kMaxCallSeries = 4096;
  static constexpr size_t kMaxReasons = 4096;

  explicit Telemetry(const TelemetryOptions& options = {});

  // The model that is served from now on. Call once, before the engine is given its first request.
  void SetModel(const EngineInfo& info, std::chrono::nanoseconds load_duration);

  void OnStep(const StepReport& report) override;
  void OnRequestEnd(const Request& request, const absl::Status& status,
                    const FinishedEvent& outcome) override;
  void OnCallEnd(const CallRecord& record) override;

  // The labels of names that are really in use.
  std::string TenantLabel(std::string_view tenant);
  // Of one that anybody may have made up.
  std::string FindTenantLabel(std::string_view tenant) const;
  std::string ProfileLabel(std::string_view profile);

  // Each series is of one moment. Where a tenant is named, tokens, calls and attention are its own,
  // or nothing if it has no label of its own; steps and latencies are always the server's.
  TelemetrySnapshot Snapshot(const SnapshotQuery& query = {}) const;
  TelemetryFigures Figures() const;

 private:
  struct Account {
    AccountFigures figures;  // but for the bytes of its attention
    int64_t records_read = 0;
    ModeSeries* series = nullptr;
    HeadTotals heads;
  };
  using AccountKey = std::tuple<std::string_view, AttentionMode, std::string_view>;

  // All with mutex_ held.
  Account& AccountOf(const Request& request, AttentionMode mode, const ThresholdProfile* profile);
  Account& FindAccount(std::string_view tenant, AttentionMode mode, std::string_view profile);
  ModeSeries& SeriesOf(AttentionMode mode, std::string_view profile);
  void CountTokens(const StepReport& report, Clock::time_point now);
  void CountDecodeRows(const StepReport& report);
  void ObserveEnd(const FinishedEvent& outcome, bool ok, ModeSeries& series, Clock::time_point now);
  void ObserveLatency(Latency kind, std::chrono::nanoseconds latency, Clock::time_point now);
  void CountCall(const CallRecord& record);
  void CountReason(const CallRecord& record);
  AccountFigures FiguresOf(const Account& account) const;

  const Clock::time_point started_ = Clock::now();

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  LabelNames profiles_;
  LabelNames tenants_;
  std::string model_;
  ModelConfig config_;
  HeadShape shape_;
  int64_t token_bytes_ = 0;   // of the KV cache, per KV head
  int64_t record_bytes_ = 0;  // of a block record, likewise
  std::chrono::nanoseconds load_duration_{0};
  ServerSeries server_;
  std::map<std::pair<AttentionMode, std::string_view>, ModeSeries> modes_;
  std::map<AccountKey, Account> accounts_;
  std::unordered_map<const Request*, Account*> running_;
  std::set<std::string, std::less<>> methods_;
  std::map<CallSeries, int64_t> calls_;
  std::map<ReasonSeries, int64_t> rejected_;
  std::map<ReasonSeries, int64_t> failed_;
  std::map<TenantReason, int64_t> reasons_;  // of calls that did not end OK
  std::array<std::array<LatencyWindow, kWindows>, kLatencies> latencies_;
  RateWindow steps_;
  RateWindow tokens_;
  // Of the step at hand:
  std::vector<Account*> step_accounts_;  // of its decode rows
  std::vector<HeadTotals::Row> step_rows_;
};

}  // namespace eta
