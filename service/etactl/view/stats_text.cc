#include "service/etactl/view/stats_text.h"

#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "service/etactl/view/draft_text.h"
#include "service/etactl/view/progress_text.h"
#include "service/etactl/view/terminal.h"
#include "service/etactl/view/text_table.h"

namespace eta::ctl {
namespace {

constexpr char kUnknown[] = "-";
constexpr int kBarCells = 24;
constexpr int kMaxProfileRows = 12;
constexpr size_t kMaxReasonRows = 12;
constexpr size_t kFingerprintDigits = 12;

using Row = std::vector<std::string>;
using Rows = std::vector<Row>;

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(google::protobuf::util::TimeUtil::DurationToNanoseconds(duration)) *
         1e-9;
}

// "0.84 ms", "31.2 ms", "1.25 s".
std::string ReadableLatency(const google::protobuf::Duration& duration) {
  const double seconds = Seconds(duration);
  if (seconds < 0.01) return absl::StrFormat("%.2f ms", seconds * 1e3);
  if (seconds < 1.0) return absl::StrFormat("%.1f ms", seconds * 1e3);
  return ReadableSeconds(seconds);
}

// "4 s", "3 min 12 s", "5 h 03 min", "2 d 4 h".
std::string ReadableAge(const google::protobuf::Duration& duration) {
  const int64_t seconds = duration.seconds();
  if (seconds < 60) return absl::StrFormat("%d s", seconds);
  if (seconds < 3600) return absl::StrFormat("%d min %02d s", seconds / 60, seconds % 60);
  if (seconds < 86400) {
    return absl::StrFormat("%d h %02d min", seconds / 3600, seconds / 60 % 60);
  }
  return absl::StrFormat("%d d %d h", seconds / 86400, seconds / 3600 % 24);
}

std::string Share(std::optional<double> value) {
  return value ? absl::StrFormat("%.3f", *value) : kUnknown;
}

std::optional<double> Ratio(int64_t part, int64_t whole) {
  if (whole <= 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

std::string Percent(std::optional<double> share) {
  return share ? absl::StrFormat("%.1f %%", 100.0 * *share) : kUnknown;
}

std::string Drift(bool known, double drift) {
  return known ? absl::StrFormat("%+.1f %%", 100.0 * drift) : kUnknown;
}

Rows WithHeader(Row header, Rows rows) {
  rows.insert(rows.begin(), std::move(header));
  return rows;
}

// A table whose first `left` columns are names and whose other columns are numbers.
std::string Table(size_t left, const Rows& rows) {
  std::vector<Align> columns(rows.front().size(), Align::kRight);
  std::fill_n(columns.begin(), left, Align::kLeft);
  return absl::StrCat("\n", TextTable(columns, rows));
}

std::string StateName(v1::ServerState state) {
  switch (state) {
    case v1::SERVER_STATE_SERVING:
      return "serving";
    case v1::SERVER_STATE_DRAINING:
      return "DRAINING";
    case v1::SERVER_STATE_STALLED:
      return "STALLED";
    case v1::SERVER_STATE_DEVICE_LOST:
      return "NO DEVICE WORKS";
    default:
      return "unknown";
  }
}

// What layers see, of a model that has layers with windows; else empty.
std::string Views(const v1::KvGeometry& kv) {
  if (!kv.has_full_layers()) return "";
  if (kv.full_layers() == 0) return absl::StrFormat("all layers see %d tokens\n", kv.window());
  return absl::StrFormat("%d %s the whole context, the %s %d tokens\n", kv.full_layers(),
                         kv.full_layers() == 1 ? "layer sees" : "layers see",
                         kv.layers() - kv.full_layers() == 1 ? "other one" : "others", kv.window());
}

std::string Heading(const v1::Stats& stats) {
  const v1::ServerInfo& server = stats.server();
  const v1::KvGeometry& kv = server.kv();
  std::string text = absl::StrFormat("%s: %s, up %s; eta-server %s, %s\n", server.model(),
                                     StateName(server.state()), ReadableAge(stats.uptime()),
                                     server.version(), server.backend());
  absl::StrAppendFormat(
      &text,
      "model %s, %d layers, %d heads over %d KV heads; KV cache of %d blocks of %d tokens in %s, "
      "%s records in %s\n",
      server.model_fingerprint().substr(0, kFingerprintDigits), kv.layers(), kv.query_heads(),
      kv.kv_heads(), kv.blocks(), kv.block_size(), kv.kv_dtype(), kv.index(), kv.index_dtype());
  absl::StrAppend(&text, Views(kv));
  if (stats.has_tenant()) {
    absl::StrAppend(&text, "figures of tenant ", stats.tenant(), " only\n");
  }
  return WithoutControls(text);
}

std::string Load(const v1::EngineLoad& load) {
  std::string text = absl::StrFormat(
      "\nrunning %d, waiting %d (%d prompt tokens); %.1f tokens/s, %.1f steps/s in the last "
      "minute\n",
      load.running(), load.waiting(), load.waiting_tokens(), load.tokens_per_second(),
      load.steps_per_second());
  absl::StrAppendFormat(&text,
                        "since the start: %d steps, %d prompt tokens (%d cached), %d generated, %d "
                        "preemptions\n",
                        load.steps(), load.prompt_tokens(), load.cached_tokens(),
                        load.output_tokens(), load.preemptions());
  if (load.drafts().drafted() > 0) {
    absl::StrAppend(&text, "drafts: ", DescribeDrafts(load.drafts()), "\n");
  }
  if (load.paused() > 0) {
    absl::StrAppendFormat(&text, "paused until their clients have read: %d\n", load.paused());
  }
  if (load.passes_running() + load.passes_waiting() > 0) {
    absl::StrAppendFormat(&text, "calibration passes: %d running, %d waiting\n",
                          load.passes_running(), load.passes_waiting());
  }
  Rows rows;
  for (int i = 0; i < load.devices_size(); ++i) {
    const v1::DeviceLoad& device = load.devices(i);
    const int64_t all =
        int64_t{device.blocks_used()} + device.blocks_cached() + device.blocks_free();
    const double used = Ratio(device.blocks_used(), all).value_or(0.0);
    rows.push_back(
        {device.lost() ? absl::StrCat(i, " LOST") : absl::StrCat(i), DensityBar(used, kBarCells),
         absl::StrCat(device.blocks_used()), absl::StrCat(device.blocks_cached()),
         absl::StrCat(device.blocks_free()), absl::StrCat(device.running()),
         absl::StrCat(device.waiting()), ReadableLatency(device.predicted_wait()),
         device.prefill_tokens_per_second() > 0.0
             ? absl::StrFormat("%.0f", device.prefill_tokens_per_second())
             : kUnknown,
         device.has_slot_interval() ? ReadableLatency(device.slot_interval()) : kUnknown});
  }
  if (rows.empty()) return text;
  return text +
         Table(2, WithHeader({"device", "KV blocks in use", "used", "cached", "free", "running",
                              "waiting", "predicted wait", "prompt tokens/s", "a slot every"},
                             std::move(rows)));
}

std::string WaitingCalls(const v1::Stats& stats) {
  const v1::StoreCallStats& calls = stats.store_calls();
  std::string text;
  if (stats.tokenizer_calls().waiting() > 0) {
    absl::StrAppendFormat(&text, "requests whose text waits to be made tokens: %d of %d\n",
                          stats.tokenizer_calls().waiting(), stats.tokenizer_calls().max_waiting());
  }
  if (calls.waiting() > 0) {
    absl::StrAppendFormat(&text, "calls that wait for the profile store: %d of %d\n",
                          calls.waiting(), calls.max_waiting());
  }
  if (calls.lookups_waiting() > 0) {
    absl::StrAppendFormat(&text, "requests that wait for their profile: %d of %d\n",
                          calls.lookups_waiting(), calls.max_lookups_waiting());
  }
  return text;
}

std::string DefaultProfile(const v1::DefaultProfileStats& calls) {
  return absl::StrFormat(
      "default profile: %d calls used it; the tenant had none in %d, it was of another model in "
      "%d, "
      "the store could not give it in %d\n",
      calls.used(), calls.absent(), calls.unfit(), calls.unavailable());
}

std::string Memory(const v1::PressureStats& pressure) {
  std::string done;
  switch (pressure.pressure()) {
    case v1::PRESSURE_SHORT:
      done = "CALLS ARE REFUSED";
      break;
    case v1::PRESSURE_CRITICAL:
      done = "THE LARGEST ANSWERS END";
      break;
    default:
      break;
  }
  std::string text;
  if (!done.empty()) {
    text = absl::StrFormat("memory: %s of the limit used, %s\n", Percent(pressure.memory_used()),
                           done);
  }
  if (pressure.streams_ended() > 0) {
    absl::StrAppend(&text, "answers given up for want of memory: ", pressure.streams_ended(), "\n");
  }
  if (pressure.answers_cut_off() > 0) {
    absl::StrAppend(&text, "answers that nobody read: ", pressure.answers_cut_off(), "\n");
  }
  return text;
}

std::string Connections(const v1::ConnectionStats& stats) {
  return absl::StrFormat("\nconnections: %d open of %d, %d since the start, %d refused\n",
                         stats.open(), stats.max(), stats.accepted(),
                         stats.refused_full() + stats.refused_peer() + stats.refused_no_files());
}

std::string KindName(v1::LatencyKind kind) {
  switch (kind) {
    case v1::LATENCY_KIND_FIRST_TOKEN:
      return "first token";
    case v1::LATENCY_KIND_INTER_TOKEN:
      return "inter-token";
    case v1::LATENCY_KIND_QUEUE:
      return "queue";
    case v1::LATENCY_KIND_REQUEST:
      return "request";
    default:
      return "unknown";
  }
}

std::string Latencies(const v1::Stats& stats) {
  Rows rows;
  for (const v1::LatencyStats& latency : stats.latencies()) {
    const bool known = latency.count() > 0;
    rows.push_back({KindName(latency.kind()),
                    latency.window() == v1::LATENCY_WINDOW_ONE_MINUTE ? "1 min" : "10 min",
                    absl::StrCat(latency.count()),
                    known ? ReadableLatency(latency.p50()) : kUnknown,
                    known ? ReadableLatency(latency.p95()) : kUnknown,
                    known ? ReadableLatency(latency.p99()) : kUnknown});
  }
  if (rows.empty()) return "";
  return Table(
      2, WithHeader({"latency", "of the last", "count", "p50", "p95", "p99"}, std::move(rows)));
}

std::string SeriesName(const v1::AttentionSeries& series) {
  switch (series.mode()) {
    case v1::ATTENTION_MODE_FULL:
      return "full";
    case v1::ATTENTION_MODE_DYNAMIC:
      return "dynamic";
    default:
      break;
  }
  const std::string version = series.has_version() ? absl::StrCat("@", series.version()) : "";
  return absl::StrCat("profile ", series.profile(), version);
}

// The same series in an earlier snapshot; null if it did not exist then.
const v1::AttentionSeries* Find(const v1::Stats* stats, const v1::AttentionSeries& series) {
  if (stats == nullptr) return nullptr;
  for (const v1::AttentionSeries& other : stats->attention()) {
    if (other.mode() == series.mode() && other.profile() == series.profile() &&
        other.has_version() == series.has_version() && other.version() == series.version() &&
        other.tenant() == series.tenant()) {
      return &other;
    }
  }
  return nullptr;
}

std::string Attention(const v1::Stats& stats, const v1::Stats* before) {
  Rows rows;
  for (const v1::AttentionSeries& series : stats.attention()) {
    const v1::AttentionStats& totals = series.totals();
    Row row = {SeriesName(series), series.tenant(), absl::StrCat(totals.decode_steps())};
    if (before != nullptr) {
      const v1::AttentionSeries* const earlier = Find(before, series);
      const v1::AttentionStats then = earlier ? earlier->totals() : v1::AttentionStats();
      row.push_back(Share(Ratio(totals.keys_attended() - then.keys_attended(),
                                totals.keys_eligible() - then.keys_eligible())));
      row.push_back(Share(
          Ratio(totals.keys_read() - then.keys_read(), totals.keys_cached() - then.keys_cached())));
    }
    const bool decoded = totals.decode_steps() > 0;
    row.insert(row.end(), {decoded ? Share(totals.head_density()) : kUnknown,
                           decoded ? Share(totals.union_density()) : kUnknown,
                           ReadableBytes(totals.kv_bytes_read()),
                           Percent(Ratio(totals.kv_bytes_read(), totals.kv_bytes_dense())),
                           ReadableBytes(totals.index_bytes_read())});
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return "\nnothing was decoded yet\n";
  Row header = {"density with", "tenant", "steps"};
  if (before != nullptr) header.insert(header.end(), {"head now", "union now"});
  header.insert(header.end(), {"head", "union", "KV read", "of full", "index"});
  return Table(2, WithHeader(std::move(header), std::move(rows)));
}

// The last ten minutes of each version beside what its calibration measured.
std::string Drifts(const v1::Stats& stats) {
  Rows rows;
  bool elsewhere = false;
  for (const v1::AttentionSeries& series : stats.attention()) {
    if (!series.has_calibrated_head_density()) continue;
    const bool other = series.drift_context() == v1::DRIFT_CONTEXT_OTHER;
    const v1::RecentAttention& recent =
        series.has_recent_as_calibrated() ? series.recent_as_calibrated() : series.recent();
    const bool decoded = recent.decode_steps() > 0;
    const int64_t longest = series.calibrated_context();
    const auto measured = [decoded](double density) {
      return Share(decoded ? std::optional(density) : std::nullopt);
    };
    rows.push_back(
        {SeriesName(series), series.tenant(), absl::StrCat(recent.decode_steps()),
         decoded ? absl::StrFormat("%.0f%s", recent.context(), other ? " *" : "") : kUnknown,
         longest > 0 ? absl::StrCat(longest / 2 + 1, "-", longest) : kUnknown,
         measured(recent.head_density()), Share(series.calibrated_head_density()),
         Drift(series.has_head_density_drift(), series.head_density_drift()),
         measured(recent.union_density()), Share(series.calibrated_union_density()),
         Drift(series.has_union_density_drift(), series.union_density_drift())});
    elsewhere = elsewhere || other;
  }
  if (rows.empty()) return "";
  const std::string note =
      "* another length than calibration measured; density falls as contexts grow\n";
  return Table(2,
               WithHeader({"drift, last 10 min", "tenant", "steps", "mean context", "calibrated at",
                           "head", "calibrated", "drift", "union", "calibrated", "drift"},
                          std::move(rows))) +
         (elsewhere ? note : "");
}

// What reading less cost: the mass kept by rows that were measured, beside what calibration
// promised.
std::string Quality(const v1::Stats& stats) {
  Rows rows;
  for (const v1::AttentionSeries& series : stats.attention()) {
    const v1::AttentionStats& totals = series.totals();
    if (!totals.has_mass_kept() && series.fallbacks() == 0) continue;
    const v1::RecentAttention& recent =
        series.has_recent_as_calibrated() && series.recent_as_calibrated().has_mass_kept()
            ? series.recent_as_calibrated()
            : series.recent();
    const auto number = [](bool there, double value) {
      return there ? absl::StrFormat("%.3f", value) : kUnknown;
    };
    rows.push_back({SeriesName(series), series.tenant(), absl::StrCat(totals.shadow_row_layers()),
                    number(totals.has_mass_kept(), totals.mass_kept()),
                    number(totals.has_output_error(), totals.output_error()),
                    number(recent.has_mass_kept(), recent.mass_kept()),
                    number(series.has_calibrated_mass(), series.calibrated_mass()),
                    absl::StrCat(series.fallbacks()), absl::StrCat(totals.fallback_steps())});
  }
  if (rows.empty()) return "";
  return Table(2, WithHeader({"quality", "tenant", "row-layers", "mass kept", "output error",
                              "mass, last 10 min", "calibrated", "gone full", "full steps"},
                             std::move(rows)));
}

// The densities of one layer's heads since an earlier snapshot, or since the server began.
struct LayerDensity {
  std::vector<double> heads;   // per query head
  std::optional<double> mean;  // mean over the heads; absent: nothing was decoded
  std::optional<double> read;  // mean over KV heads
};

LayerDensity DensityOf(const v1::LayerAttention& layer, const v1::LayerAttention* before) {
  LayerDensity density;
  const int64_t eligible =
      layer.keys_eligible() - (before != nullptr ? before->keys_eligible() : 0);
  if (eligible <= 0) return density;
  const auto shares = [eligible](const auto& now, const auto* then) {
    std::vector<double> result;
    for (int i = 0; i < now.size(); ++i) {
      const int64_t earlier = then != nullptr && i < then->size() ? then->Get(i) : 0;
      result.push_back(static_cast<double>(now.Get(i) - earlier) / static_cast<double>(eligible));
    }
    return result;
  };
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return values.empty() ? std::nullopt : std::optional(sum / static_cast<double>(values.size()));
  };
  density.heads =
      shares(layer.keys_attended(), before != nullptr ? &before->keys_attended() : nullptr);
  density.mean = mean(density.heads);
  density.read =
      mean(shares(layer.keys_read(), before != nullptr ? &before->keys_read() : nullptr));
  return density;
}

std::string Layers(const v1::KvGeometry& kv, const v1::AttentionSeries& series,
                   const v1::AttentionSeries* before) {
  Rows rows;
  for (int i = 0; i < series.layers_size(); ++i) {
    if (kv.has_full_layers() && series.layers(i).keys_eligible() == 0 &&
        series.totals().decode_steps() > 0) {
      rows.push_back(
          {absl::StrCat(i), "", "", absl::StrCat("sees ", kv.window(), " tokens"), "", ""});
      continue;
    }
    const bool compared = before != nullptr && i < before->layers_size();
    const LayerDensity density =
        DensityOf(series.layers(i), compared ? &before->layers(i) : nullptr);
    std::string range = kUnknown;
    if (!density.heads.empty()) {
      const auto [low, high] = std::minmax_element(density.heads.begin(), density.heads.end());
      range = absl::StrFormat("%.3f to %.3f", *low, *high);
    }
    rows.push_back({absl::StrCat(i), DensityBar(density.mean.value_or(0.0), kBarCells),
                    Share(density.mean), range, DensityBar(density.read.value_or(0.0), kBarCells),
                    Share(density.read)});
  }
  if (rows.empty()) return "";
  const std::vector<Align> columns = {Align::kRight, Align::kLeft, Align::kRight,
                                      Align::kRight, Align::kLeft, Align::kRight};
  const std::string since = before != nullptr ? "now" : "since the start";
  return absl::StrCat(
      "\n", WithoutControls(absl::StrCat(SeriesName(series), " of ", series.tenant())),
      " by layer, ", since, "\n",
      TextTable(columns, WithHeader({"layer", "head density", "", "its heads", "union density", ""},
                                    std::move(rows))));
}

std::string Tenants(const v1::Stats& stats) {
  Rows rows;
  for (const v1::TenantStats& tenant : stats.tenants()) {
    int64_t calls = 0;
    int64_t failed = 0;
    for (const v1::CallCount& count : tenant.calls()) {
      calls += count.calls();
      if (count.code() != "OK") failed += count.calls();
    }
    const v1::AttentionStats& attention = tenant.attention();
    const bool decoded = attention.decode_steps() > 0;
    rows.push_back({tenant.tenant(), absl::StrCat(calls), absl::StrCat(failed),
                    absl::StrCat(tenant.prompt_tokens()), absl::StrCat(tenant.cached_tokens()),
                    absl::StrCat(tenant.output_tokens()),
                    decoded ? Share(attention.head_density()) : kUnknown,
                    decoded ? Share(attention.union_density()) : kUnknown,
                    ReadableBytes(attention.kv_bytes_dense() - attention.kv_bytes_read())});
  }
  if (rows.empty()) return "";
  return Table(1, WithHeader({"tenant", "calls", "not OK", "prompt tokens", "cached", "generated",
                              "head density", "union density", "KV not read"},
                             std::move(rows)));
}

// The reasons why calls were refused, gave up or failed, the most frequent first.
std::string Reasons(const v1::Stats& stats) {
  std::vector<std::pair<const v1::ReasonCount*, const std::string*>> counts;
  for (const v1::TenantStats& tenant : stats.tenants()) {
    for (const v1::ReasonCount& count : tenant.reasons()) {
      counts.emplace_back(&count, &tenant.tenant());
    }
  }
  std::stable_sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
    return a.first->calls() > b.first->calls();
  });
  Rows rows;
  for (const auto& [count, tenant] : counts) {
    if (rows.size() == kMaxReasonRows) break;
    rows.push_back({count->reason().empty() ? kUnknown : count->reason(), count->method(), *tenant,
                    absl::StrCat(count->calls())});
  }
  if (rows.empty()) return "";
  const size_t more = counts.size() - rows.size();
  std::string text =
      Table(3, WithHeader({"not OK for", "method", "tenant", "calls"}, std::move(rows)));
  if (more > 0) absl::StrAppend(&text, "and ", more, " more\n");
  return text;
}

// "3 of 8", or "3" if there is no bound.
std::string OfBound(int64_t value, int64_t bound) {
  return bound > 0 ? absl::StrCat(value, " of ", bound) : absl::StrCat(value);
}

std::string Uses(const v1::Stats& stats) {
  Rows rows;
  for (const v1::TenantUse& use : stats.uses()) {
    rows.push_back(
        {use.tenant(), OfBound(use.calls(), use.max_calls()),
         use.has_tokens_left() ? OfBound(use.tokens_left(), use.burst_tokens()) : kUnknown,
         use.has_tokens_left() ? absl::StrFormat("%g", use.tokens_per_second()) : kUnknown,
         absl::StrCat(use.running(), ", ", use.paused(), ", ", use.waiting()),
         OfBound(use.kv_tokens(), use.max_kv_tokens()), absl::StrFormat("%g", use.weight()),
         OfBound(use.calibrations(), use.max_calibrations()),
         use.has_stored_versions() ? OfBound(use.stored_versions(), use.profile_versions())
                                   : kUnknown,
         use.has_stored_bytes() ? absl::StrCat(ReadableBytes(use.stored_bytes()), " of ",
                                               ReadableBytes(use.profile_bytes()))
                                : kUnknown});
  }
  if (rows.empty()) return "";
  return Table(1, WithHeader({"limits of", "calls now", "tokens left", "per second",
                              "running, paused, waiting", "KV tokens", "weight", "calibrations",
                              "profiles", "bytes of them"},
                             std::move(rows)));
}

std::string Profiles(const v1::Stats& stats) {
  Rows rows;
  for (const v1::LoadedProfile& profile : stats.profiles()) {
    if (rows.size() == kMaxProfileRows) break;
    rows.push_back({absl::StrCat(profile.name(), "@", profile.version()), profile.tenant(),
                    profile.has_head_density() ? Share(profile.head_density()) : kUnknown,
                    profile.has_union_density() ? Share(profile.union_density()) : kUnknown});
  }
  if (rows.empty()) return "";
  const auto shown = static_cast<int>(rows.size());
  std::string text =
      Table(2, WithHeader({"profile in memory", "tenant", "calibrated head", "calibrated union"},
                          std::move(rows)));
  if (stats.profiles_loaded() > shown) {
    absl::StrAppend(&text, "and ", stats.profiles_loaded() - shown, " more\n");
  }
  return text;
}

std::string Calibrations(const v1::Stats& stats) {
  Rows rows;
  for (const v1::RunningCalibration& calibration : stats.calibrations()) {
    rows.push_back(
        {calibration.profile(), calibration.tenant(), ReadableAge(calibration.elapsed()),
         calibration.has_progress() ? DescribeProgress(calibration.progress()) : "beginning"});
  }
  if (rows.empty()) return "";
  rows.insert(rows.begin(), {"calibration of", "tenant", "for", "progress"});
  return Table(4, rows);
}

}  // namespace

std::string DensityBar(double share, int cells) {
  const int filled =
      std::isfinite(share)
          ? static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(cells)))
          : 0;
  return std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(cells - filled), '.');
}

std::string DescribeStats(const v1::Stats& stats, const v1::Stats* before) {
  std::string text = Heading(stats);
  if (stats.has_load()) absl::StrAppend(&text, Load(stats.load()));
  if (stats.has_connections()) absl::StrAppend(&text, Connections(stats.connections()));
  absl::StrAppend(&text, WaitingCalls(stats), Memory(stats.pressure()));
  if (stats.has_default_profile()) absl::StrAppend(&text, DefaultProfile(stats.default_profile()));
  absl::StrAppend(&text, Attention(stats, before), Drifts(stats), Quality(stats));
  for (const v1::AttentionSeries& series : stats.attention()) {
    if (series.mode() == v1::ATTENTION_MODE_FULL) continue;  // its density is 1 everywhere
    const v1::AttentionSeries* earlier = Find(before, series);
    const bool idle =
        earlier != nullptr && earlier->totals().decode_steps() == series.totals().decode_steps();
    absl::StrAppend(&text, Layers(stats.server().kv(), series, idle ? nullptr : earlier));
  }
  absl::StrAppend(&text, Latencies(stats), Tenants(stats), Reasons(stats), Uses(stats),
                  Profiles(stats), Calibrations(stats));
  return text;
}

}  // namespace eta::ctl
