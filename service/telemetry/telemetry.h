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
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "engine/front/engine.h"
#include "engine/request/observer.h"
#include "service/telemetry/call_record.h"
#include "service/telemetry/head_totals.h"
#include "service/telemetry/label_names.h"
#include "service/telemetry/latency_window.h"
#include "service/telemetry/telemetry_options.h"
#include "service/telemetry/telemetry_series.h"
#include "service/telemetry/telemetry_snapshot.h"

namespace eta {

class Telemetry final : public Observer, public CallObserver {
 public:
  // Above these, what comes counts as of tenant "other", in calls also of profile "other".
  static constexpr size_t kMaxAccounts = 1024;
  static constexpr size_t kMaxCallSeries = 4096;
  static constexpr size_t kMaxReasons = 4096;
  // A label that was used so recently stays, so that a counter that goes has long stood still.
  static constexpr std::chrono::minutes kLabelHold{10};

  // `now` is for tests.
  explicit Telemetry(const TelemetryOptions& options = {},
                     std::function<Clock::time_point()> now = Clock::now);

  // The model that is served from now on. Call once, before the engine is given its first request.
  void SetModel(const EngineInfo& info, std::chrono::nanoseconds load_duration);

  void OnStep(const StepReport& report) override;
  void OnRequestEnd(const Request& request, const absl::Status& status,
                    const FinishedEvent& outcome) override;
  void OnCallEnd(const CallRecord& record) override;
  void OnCalibrationEnd(const CallRecord& record, bool alone) override;

  // Labels of what exists whether or not requests use it: it gets one if there is room. Such labels
  // are the first to go.
  Label TenantLabel(std::string_view tenant);
  Label ProfileLabel(std::string_view profile);
  // False: the version has no label of its own, or its profile has none.
  bool HasVersionLabel(std::string_view profile, int64_t version);
  // Of a tenant that anybody may have made up.
  Label FindTenantLabel(std::string_view tenant) const;

  // Each series is of one moment. Where a tenant is named, accounts, calls and reasons are its own,
  // or none if it has no label of its own; all else is always the server's.
  TelemetrySnapshot Snapshot(const SnapshotQuery& query = {}) const;

 private:
  struct Account {
    AccountSeries series;
    ModeSeries* mode = nullptr;
    HeadTotals heads;
    AttentionWindow window;
  };
  using AccountKey = std::tuple<Label, AttentionMode, Label, int64_t>;

  // All with mutex_ held.
  Account& AccountOf(const Request& request, AttentionMode mode, const ThresholdProfile* profile,
                     Clock::time_point now);
  Account& FindAccount(const AccountKey& key);
  ModeSeries& SeriesOf(AttentionMode mode);
  void CountTokens(const StepReport& report, Clock::time_point now);
  void CountDecodeRows(const StepReport& report, Clock::time_point now);
  void CountPrefill(const StepReport& report, Clock::time_point now);
  void CountShadow(const StepReport& report, Clock::time_point now);
  void CountExperts(const StepReport& report);
  void ObserveEnd(const FinishedEvent& outcome, bool ok, Account& account, Clock::time_point now);
  void ObserveLatency(Latency kind, std::chrono::nanoseconds latency, Clock::time_point now);
  void CountFormat(const FormatUse& format);
  void CountAnswer(AnswerFormatKind kind, const absl::Status& status, FinishReason reason);
  void CountCall(const CallRecord& record);
  void CountCalibration(CallEnd end, const CallRecord& record);
  void CountReason(const CallRecord& record);
  AccountSeries SeriesOf(const Account& account, Clock::time_point now) const;
  void ReadAccounts(const SnapshotQuery& query, Clock::time_point now,
                    std::unique_lock<std::mutex>& lock, TelemetrySnapshot& snapshot) const;

  // With mutex_ held (telemetry_labels.cc). A name that is in use has the label of the name that
  // has been idle for longest, if that is longer than kLabelHold; what was counted under the old
  // label then stays in sums alone (Label::Gone).
  Label UseTenant(std::string_view tenant, Clock::time_point now);
  Label UseProfile(std::string_view profile, Clock::time_point now);
  int64_t UseVersion(const Label& profile, int64_t version, Clock::time_point now);
  int64_t FindVersion(const Label& profile, int64_t version) const;
  void UseLabelsOfRunning(Clock::time_point now);
  void FoldTenant(const Label& label);
  void FoldProfile(const Label& label);
  void FoldVersion(const Label& label);
  void FoldAccounts(const std::function<bool(AccountSeries&)>& rename);
  void FoldCalls(const std::function<bool(CallSeries&)>& rename);

  const std::function<Clock::time_point()> now_;
  const Clock::time_point started_ = now_();

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  LabelNames profiles_;
  LabelNames versions_;  // "profile@version"
  LabelNames tenants_;
  std::string model_;
  ModelConfig config_;
  std::chrono::nanoseconds load_duration_{0};
  ServerSeries server_;
  std::map<AttentionMode, ModeSeries> modes_;
  std::map<AccountKey, Account> accounts_;
  int64_t folds_ = 0;  // of accounts: how often some have gone
  std::unordered_map<const Request*, Account*> running_;
  std::set<std::string, std::less<>> methods_;
  std::map<CallSeries, int64_t> calls_;
  std::map<ReasonSeries, int64_t> rejected_;
  std::map<ReasonSeries, int64_t> failed_;
  std::map<TenantReason, int64_t> reasons_;  // of calls that did not end OK
  std::array<std::array<LatencyWindow, kWindows>, kLatencies> latencies_;
  RateWindow steps_;
  RateWindow tokens_;
  std::vector<HeadTotals::Row> step_rows_;  // of the step at hand
};

}  // namespace eta
