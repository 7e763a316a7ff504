#include "service/telemetry/telemetry.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/format/answer_guide.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

using std::chrono::nanoseconds;

double Seconds(nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

StepPhase PhaseOf(const StepReport& report) {
  if (report.pass_rows > 0) return StepPhase::kPass;
  if (report.decode_rows == 0) return StepPhase::kPrefill;
  return report.prefill_rows == 0 ? StepPhase::kDecode : StepPhase::kMixed;
}

std::array<LatencyWindow, kWindows> Windows() {
  return {LatencyWindow(std::chrono::seconds(5), 12), LatencyWindow(std::chrono::seconds(30), 20)};
}

}  // namespace

Telemetry::Telemetry(const TelemetryOptions& options, std::function<Clock::time_point()> now)
    : now_(std::move(now)),
      profiles_(options.profiles, static_cast<size_t>(options.label_limit)),
      versions_({}, std::max(options.profiles.size(), static_cast<size_t>(options.label_limit))),
      tenants_(options.tenants, static_cast<size_t>(options.label_limit)),
      latencies_{Windows(), Windows(), Windows(), Windows()} {
  for (const std::string_view reason : RejectionReasons()) {
    rejected_[{"Generate", std::string(reason)}] = 0;
  }
  for (const std::string_view reason : FailureReasons()) {
    failed_[{"Generate", std::string(reason)}] = 0;
  }
}

void Telemetry::SetModel(const EngineInfo& info, nanoseconds load_duration) {
  const std::lock_guard lock(mutex_);
  model_ = info.model_name;
  config_ = info.config;
  load_duration_ = load_duration;
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    if (!config_.HasExperts(layer)) continue;
    const auto experts = static_cast<size_t>(config_.num_experts);
    server_.experts.push_back({layer, std::vector<int64_t>(experts)});
  }
  SeriesOf(AttentionMode::kFull);
  SeriesOf(ResolveAttention({}, info.config).mode);
}

ModeSeries& Telemetry::SeriesOf(AttentionMode mode) {
  return modes_.try_emplace(mode, ModeSeries{.mode = mode}).first->second;
}

Telemetry::Account& Telemetry::FindAccount(const AccountKey& key) {
  auto found = accounts_.find(key);
  if (found != accounts_.end()) return found->second;
  const auto& [tenant, mode, profile, version] = key;
  // What goes has one account of a tenant and mode, and is no event of tenant "other".
  const bool folded = tenant == Label::Gone() || profile == Label::Gone();
  if (accounts_.size() >= kMaxAccounts && tenant != Label::Other() && !folded) {
    return FindAccount({Label::Other(), mode, profile, version});
  }
  Account account{
      .series = {.tenant = tenant, .mode = mode, .profile = profile, .version = version},
      .mode = &SeriesOf(mode),
      .heads = HeadTotals({.num_layers = config_.num_layers,
                           .num_query_heads = config_.num_query_heads,
                           .num_kv_heads = config_.num_kv_heads})};
  return accounts_.emplace(key, std::move(account)).first->second;
}

Telemetry::Account& Telemetry::AccountOf(const Request& request, AttentionMode mode,
                                         const ThresholdProfile* profile, Clock::time_point now) {
  const auto found = running_.find(&request);
  if (found != running_.end()) return *found->second;
  const Label tenant = UseTenant(request.tenant, now);
  const Label name = profile != nullptr ? UseProfile(profile->name, now) : Label::None();
  const int64_t version = UseVersion(name, profile != nullptr ? profile->version : 0, now);
  Account& account = FindAccount({tenant, mode, name, version});
  running_.emplace(&request, &account);
  return account;
}

void Telemetry::OnStep(const StepReport& report) {
  const Clock::time_point now = now_();
  const std::lock_guard lock(mutex_);
  server_.preemptions += report.preemptions;
  const int32_t rows = report.prefill_rows + report.decode_rows;
  if (rows + report.pass_rows == 0) return;
  ++server_.steps;
  steps_.Add(1, now);
  server_.step_duration[static_cast<size_t>(PhaseOf(report))].Observe(Seconds(report.duration));
  server_.pass_rows += report.pass_rows;
  if (report.masks > 0) {
    server_.step_masks.Observe(Seconds(report.mask_time));
    server_.step_mask_wait.Observe(Seconds(report.mask_delay));
  }
  if (rows == 0) return;
  server_.drafts.Add(report.drafts);
  server_.batch_size.Observe(report.sequences);
  server_.step_tokens.Observe(rows);
  CountTokens(report, now);
  CountDecodeRows(report, now);
  CountPrefill(report, now);
  CountShadow(report, now);
  CountExperts(report);
}

void Telemetry::CountTokens(const StepReport& report, Clock::time_point now) {
  for (const TokenReport& token : report.tokens) {
    Account& account =
        AccountOf(*token.request, token.attention->mode, token.attention->profile.get(), now);
    ++account.series.output_tokens;
    Histogram& histogram = token.first ? account.mode->first_token : account.mode->inter_token;
    histogram.Observe(Seconds(token.latency));
    ObserveLatency(token.first ? Latency::kFirstToken : Latency::kInterToken, token.latency, now);
  }
  tokens_.Add(static_cast<int64_t>(report.tokens.size()), now);
}

void Telemetry::CountDecodeRows(const StepReport& report, Clock::time_point now) {
  step_rows_.clear();
  for (const DecodeRowReport& row : report.decode) {
    const ThresholdProfile* const profile = row.attention->profile.get();
    Account& account = AccountOf(*row.request, row.attention->mode, profile, now);
    account.series.attention.Add(row.sums);
    if (row.fallback()) continue;
    step_rows_.push_back({.report = &row, .totals = &account.heads});
    account.window.Add({row.sums, row.kv_len},
                       profile != nullptr && profile->MeasuredAt(row.kv_len), now);
  }
  HeadTotals::Add(report, step_rows_);
}

void Telemetry::CountPrefill(const StepReport& report, Clock::time_point now) {
  for (const PrefillReport& rows : report.prefill) {
    AccountOf(*rows.request, rows.attention->mode, rows.attention->profile.get(), now)
        .series.attention.Add(rows.sums);
  }
}

void Telemetry::CountShadow(const StepReport& report, Clock::time_point now) {
  for (const ShadowReport& row : report.shadow) {
    const ThresholdProfile* const profile = row.attention->profile.get();
    Account& account = AccountOf(*row.request, row.attention->mode, profile, now);
    const AttentionSums sums = CountShadowRow(row.mass, row.error);
    account.series.attention.Add(sums);
    account.series.mass_kept.Observe(row.mass);
    account.window.Add({sums}, profile != nullptr && profile->MeasuredAt(row.kv_len), now);
  }
}

void Telemetry::CountExperts(const StepReport& report) {
  if (report.expert_rows == nullptr) return;
  for (ExpertTotals& layer : server_.experts) {
    const int32_t* step = report.expert_rows + int64_t{layer.layer} * config_.num_experts;
    for (size_t e = 0; e < layer.rows.size(); ++e) {
      layer.rows[e] += step[e];
      layer.read += step[e] > 0 ? 1 : 0;
    }
  }
}

void Telemetry::ObserveLatency(Latency kind, nanoseconds latency, Clock::time_point now) {
  for (LatencyWindow& window : latencies_[static_cast<size_t>(kind)]) window.Observe(latency, now);
}

void Telemetry::OnRequestEnd(const Request& request, const absl::Status& status,
                             const FinishedEvent& outcome) {
  const Clock::time_point now = now_();
  const std::lock_guard lock(mutex_);
  if (outcome.timing.queue.count() > 0) {  // it was scheduled
    const ResolvedAttention attention = ResolveAttention(request.attention, config_);
    Account& account = AccountOf(request, attention.mode, attention.profile.get(), now);
    account.series.prompt_tokens += outcome.prompt_tokens;
    account.series.cached_tokens += outcome.cached_tokens;
    // A client's wish for full attention says nothing of the mass.
    const bool wished = request.attention.begin == Begin::kFull;
    if (outcome.full_from && !wished) ++account.series.fallbacks;
    ObserveEnd(outcome, status.ok(), account, now);
  }
  if (request.format != nullptr) {
    CountAnswer(request.format->format().kind, status, outcome.reason);
  }
  running_.erase(&request);
}

void Telemetry::ObserveEnd(const FinishedEvent& outcome, bool ok, Account& account,
                           Clock::time_point now) {
  const Timing& timing = outcome.timing;
  server_.queue.Observe(Seconds(timing.queue));
  ObserveLatency(Latency::kQueue, timing.queue, now);
  server_.prompt_tokens.Observe(outcome.prompt_tokens);
  server_.generated_tokens.Observe(outcome.output_tokens);
  if (outcome.output_tokens > 0) {
    server_.prefill.Observe(Seconds(timing.prefill));
    server_.decode.Observe(Seconds(timing.decode));
  }
  if (outcome.attention.decode_rows > 0) {
    account.series.density.Observe(outcome.attention.head_density());
    account.series.union_density.Observe(outcome.attention.union_density());
  }
  if (!ok) return;
  const nanoseconds duration = timing.first_token + timing.decode;
  account.mode->duration.Observe(Seconds(duration));
  ObserveLatency(Latency::kRequest, duration, now);
  if (outcome.output_tokens > 1) {
    account.mode->per_output_token.Observe(Seconds(timing.decode) / (outcome.output_tokens - 1));
  }
}

void Telemetry::CountAnswer(AnswerFormatKind kind, const absl::Status& status,
                            FinishReason reason) {
  FormatSeries& series = server_.formats[static_cast<size_t>(kind)];
  if (status.ok()) {
    ++(reason == FinishReason::kCutOff ? series.cut_off : series.ended);
  } else if (GetErrorDetail(status).reason == "ANSWER_INVALID") {
    ++series.invalid;
  }
}

void Telemetry::CountFormat(const FormatUse& format) {
  ++server_.formats[static_cast<size_t>(format.kind)].calls;
  if (format.kept) ++server_.formats_kept;
  if (format.compile) server_.format_compile.Observe(Seconds(*format.compile));
}

void Telemetry::OnCallEnd(const CallRecord& record) {
  const CallEnd end = EndOf(record);
  const bool generate = record.method == "Generate";
  const std::lock_guard lock(mutex_);
  CountCall(record);
  if (end == CallEnd::kRejected) {
    ++rejected_[{std::string(record.method), ReasonLabel(record)}];
  }
  if (end == CallEnd::kFailed) {
    ++failed_[{std::string(record.method), ReasonLabel(record)}];
  }
  if (generate && end == CallEnd::kCancelled) {
    ++server_.cancelled[static_cast<size_t>(StageOf(record))];
  }
  // A format that takes too long to compile or to follow says nothing of how long tokens take.
  if (generate && absl::IsDeadlineExceeded(record.status) && record.reason != "FORMAT_TOO_SLOW") {
    server_.deadline_wait.Observe(Seconds(LongestWait(record)));
  }
  if (record.default_profile) {
    ++server_.default_profile[static_cast<size_t>(*record.default_profile)];
  }
  if (record.format) CountFormat(*record.format);
  if (record.method == "Calibrate" && !record.of_calibration) CountCalibration(end, record);
}

void Telemetry::OnCalibrationEnd(const CallRecord& record, bool /*alone*/) {
  const std::lock_guard lock(mutex_);
  CountCalibration(CalibrationEndOf(record), record);
}

void Telemetry::CountCalibration(CallEnd end, const CallRecord& record) {
  ++server_.calibrations[static_cast<size_t>(end)];
  if (end != CallEnd::kRejected) server_.calibration.Observe(Seconds(record.duration));
}

void Telemetry::CountCall(const CallRecord& record) {
  // Names are believed of a call that has done something: they cannot have been made up.
  const bool believed = record.submitted || record.status.ok();
  const Clock::time_point now = now_();
  CallSeries series{
      .method = *methods_.emplace(record.method).first,
      .code = record.status.code(),
      .finish_reason = FinishReasonOf(record),
      .mode = Label::kNone,
      .profile = Label::None(),
      .tenant = believed ? UseTenant(record.tenant, now) : tenants_.Find(record.tenant)};
  if (record.method == "Generate" && record.resolved) {
    series.mode = Name(record.mode);
    series.profile = believed ? UseProfile(record.profile, now) : profiles_.Find(record.profile);
    series.version = believed ? UseVersion(series.profile, record.profile_version, now)
                              : FindVersion(series.profile, record.profile_version);
  }
  if (calls_.size() >= kMaxCallSeries && !calls_.contains(series)) {
    if (series.profile != Label::None()) {
      series.profile = Label::Other();
      series.version = AccountSeries::kOtherVersions;
    }
    if (series.tenant != Label::None()) series.tenant = Label::Other();
  }
  ++calls_[series];
  if (!record.status.ok()) CountReason(record);
}

void Telemetry::CountReason(const CallRecord& record) {
  TenantReason key{.tenant = tenants_.Find(record.tenant),
                   .method = *methods_.emplace(record.method).first,
                   .reason = record.reason};
  if (reasons_.size() >= kMaxReasons && !reasons_.contains(key) && key.tenant != Label::None()) {
    key.tenant = Label::Other();
  }
  ++reasons_[std::move(key)];
}

}  // namespace eta
