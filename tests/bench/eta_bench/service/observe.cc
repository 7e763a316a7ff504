// eta-bench observe: what counting costs. A step's report goes into Telemetry as from a step
// thread, of a model of any shape without running it; then the Prometheus page is made, with as
// many profiles in use as have labels by default, and with many.

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "engine/model/kv_cache.h"
#include "prometheus/text_serializer.h"
#include "service/stats/page/status_collector.h"
#include "service/telemetry/telemetry.h"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {
namespace {

struct Options {
  int layers = 22;
  int heads = 32;
  int kv_heads = 4;
  int rows = 64;
  int context = 16384;
  std::vector<int> series = {1, 4, 64};  // tenants, each with a profile, that share the rows
  std::vector<int> profiles = {TelemetryOptions().label_limit, 200};  // in use, of a page each
  double step_milliseconds = 3.2;  // of decoding so many rows on an H200
  int samples = 2000;
};

// So many steps that they do not fit into a core's caches, since a step's counts come from the
// device.
constexpr int kSteps = 16;

EngineInfo MakeInfo(const Options& options) {
  EngineInfo info{};
  info.model_name = "bench";
  info.backend = "none";
  info.config.num_layers = options.layers;
  info.config.num_query_heads = options.heads;
  info.config.num_kv_heads = options.kv_heads;
  info.config.head_dim = 64;
  info.config.block_size = 64;
  info.kv_dtype = DType::kFloat16;
  info.index_dtype = DType::kFloat16;
  info.block_size = 64;
  info.num_blocks = 1 << 16;
  return info;
}

// Requests that decode. Each draws one token in every step.
class Streams {
 public:
  Streams(const Options& options, int series) : info_(MakeInfo(options)) {
    std::mt19937 random(1);
    const auto count = [&](int heads) {
      std::vector<int32_t> counts(static_cast<size_t>(options.layers) *
                                  static_cast<size_t>(options.rows) * static_cast<size_t>(heads));
      for (int32_t& value : counts) value = static_cast<int32_t>(random() % options.context);
      return counts;
    };
    for (int i = 0; i < kSteps; ++i) {
      attended_.push_back(count(options.heads));
      read_.push_back(count(options.kv_heads));
    }
    for (int i = 0; i < series; ++i) {
      profiles_.push_back(std::make_shared<ThresholdProfile>());
      profiles_.back()->name = "profile-" + std::to_string(i);
      profiles_.back()->version = 1;
    }
    requests_.resize(static_cast<size_t>(options.rows));
    attention_.resize(requests_.size());
    for (size_t row = 0; row < requests_.size(); ++row) {
      const size_t which = row % static_cast<size_t>(series);
      requests_[row].tenant = "tenant-" + std::to_string(which);
      requests_[row].attention = {.mode = AttentionMode::kProfile, .profile = profiles_[which]};
      attention_[row].mode = AttentionMode::kProfile;
      attention_[row].profile = profiles_[which];
      tokens_.push_back({.request = &requests_[row],
                         .attention = &attention_[row],
                         .latency = std::chrono::microseconds(3200 + 7 * row)});
      decode_.push_back({.request = &requests_[row],
                         .attention = &attention_[row],
                         .row = static_cast<int32_t>(row),
                         .kv_len = options.context});
    }
    report_.duration = std::chrono::microseconds(3200);
    report_.sequences = report_.decode_rows = report_.num_rows = options.rows;
    report_.tokens = tokens_;
    report_.decode = decode_;
  }

  // Sums the rows' counts, as the engine has just done when it reports a step.
  const StepReport& Step(int number) {
    const auto which = static_cast<size_t>(number % kSteps);
    for (size_t row = 0; row < decode_.size(); ++row) {
      decode_[row].sums = CountDecodeRow(
          info_.config, geometry_, {}, decode_[row].kv_len,
          {attended_[which].data() + row * static_cast<size_t>(info_.config.num_query_heads),
           read_[which].data() + row * static_cast<size_t>(info_.config.num_kv_heads),
           read_[which].data() + row * static_cast<size_t>(info_.config.num_kv_heads),
           report_.num_rows});
    }
    report_.tokens_attended = attended_[which].data();
    report_.tokens_read = read_[which].data();
    return report_;
  }
  int64_t KeysAttended(int steps) const {
    int64_t sum = 0;
    for (int i = 0; i < steps; ++i) {
      const std::vector<int32_t>& counts = attended_[static_cast<size_t>(i % kSteps)];
      sum += std::accumulate(counts.begin(), counts.end(), int64_t{0});
    }
    return sum;
  }
  void End(Telemetry& telemetry) const {
    FinishedEvent outcome;
    outcome.prompt_tokens = outcome.output_tokens = 100;
    outcome.attention.decode_rows = 99;
    outcome.attention.head_density_sum = outcome.attention.union_density_sum = 9.9;
    outcome.timing.queue = outcome.timing.first_token = std::chrono::milliseconds(20);
    outcome.timing.decode = std::chrono::milliseconds(320);
    for (const Request& request : requests_) {
      telemetry.OnRequestEnd(request, absl::OkStatus(), outcome);
    }
  }

 private:
  const EngineInfo info_;
  const KvGeometry geometry_ = MakeKvGeometry(info_.config, info_.kv_dtype, info_.index_dtype);
  std::vector<std::vector<int32_t>> attended_;  // [L, R, HQ] of each step
  std::vector<std::vector<int32_t>> read_;      // [L, R, HKV]
  std::vector<std::shared_ptr<ThresholdProfile>> profiles_;
  std::vector<Request> requests_;
  std::vector<ResolvedAttention> attention_;
  std::vector<TokenReport> tokens_;
  std::vector<DecodeRowReport> decode_;
  StepReport report_;
};

Json TimeSteps(const Options& options, int series) {
  Telemetry telemetry({.label_limit = TelemetryOptions::kMaxLabels});
  telemetry.SetModel(MakeInfo(options), {});
  Streams streams(options, series);
  std::vector<double> seconds;
  for (int i = 0; i < options.samples; ++i) {
    const StepReport& report = streams.Step(i);
    const Stopwatch watch;
    telemetry.OnStep(report);
    seconds.push_back(watch.seconds());
  }
  int64_t attended = 0;
  for (const AccountSeries& account : telemetry.Snapshot().accounts) {
    attended += account.attention.keys_attended;
  }
  if (attended != streams.KeysAttended(options.samples)) Fail("keys attended: wrong sum");
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {{"series", series},
          {"microseconds", median * 1e6},
          {"p99_microseconds", seconds[seconds.size() * 99 / 100] * 1e6},
          {"share_of_step", median / (options.step_milliseconds * 1e-3)}};
}

Json TimePage(const Options& options, int profiles) {
  Telemetry telemetry({.label_limit = TelemetryOptions::kMaxLabels});
  Options one = options;
  one.rows = profiles;  // a request of every profile
  one.layers = 1;
  ServerStatus status;
  status.state = ServerState::kServing;
  status.info = MakeInfo(one);
  telemetry.SetModel(status.info, {});
  Streams streams(one, profiles);
  telemetry.OnStep(streams.Step(0));
  streams.End(telemetry);
  status.store = StoreStatus{.up = true};
  for (int i = 0; i < profiles; ++i) {
    status.profiles.push_back({.tenant = Tenant::Parse("tenant-" + std::to_string(i)).value(),
                               .name = "profile-" + std::to_string(i),
                               .version = 1,
                               .checksum = std::string(64, 'a'),
                               .head_density = 0.1,
                               .union_density = 0.2});
    status.tenants.push_back({.use = {.tenant = "tenant-" + std::to_string(i)}});
    CallRecord record{.method = "Generate", .tenant = "tenant-" + std::to_string(i)};
    record.resolved = record.submitted = true;
    record.mode = AttentionMode::kProfile;
    record.profile = "profile-" + std::to_string(i);
    telemetry.OnCallEnd(record);
  }
  StatusCollector collector(telemetry);
  collector.SetServer([&] {
    ServerStatus now = status;
    now.telemetry = telemetry.Snapshot();
    now.process = ReadProcessUsage();
    now.now = Clock::now();
    return now;
  });
  std::vector<double> seconds;
  size_t bytes = 0;
  for (int i = 0; i < std::max(options.samples / 20, 3); ++i) {
    const Stopwatch watch;
    bytes = prometheus::TextSerializer().Serialize(collector.Collect()).size();
    seconds.push_back(watch.seconds());
  }
  std::sort(seconds.begin(), seconds.end());
  return {{"profiles", profiles},
          {"megabytes", static_cast<double>(bytes) * 1e-6},
          {"milliseconds", seconds[seconds.size() / 2] * 1e3},
          {"best_milliseconds", seconds.front() * 1e3},
          {"p99_milliseconds", seconds[seconds.size() * 99 / 100] * 1e3}};
}

Json Run(const Options& options) {
  Json steps = Json::array();
  for (const int series : options.series) {
    steps.push_back(TimeSteps(options, std::min(series, options.rows)));
  }
  Json pages = Json::array();
  for (const int profiles : options.profiles) pages.push_back(TimePage(options, profiles));
  return {{"bench", "observe"},        {"layers", options.layers},
          {"heads", options.heads},    {"kv_heads", options.kv_heads},
          {"rows", options.rows},      {"step_milliseconds", options.step_milliseconds},
          {"steps", std::move(steps)}, {"pages", std::move(pages)}};
}

void Print(const Json& report) {
  std::printf("%d rows, %d layers, %d/%d heads; shares are of a step of %.2f ms\n\n",
              report["rows"].get<int>(), report["layers"].get<int>(), report["heads"].get<int>(),
              report["kv_heads"].get<int>(), report["step_milliseconds"].get<double>());
  PrintTable(report["steps"], {{"tenants x profiles", "series"},
                               {"us", "microseconds", 1},
                               {"p99 us", "p99_microseconds", 1},
                               {"% of step", "share_of_step", 3, 100.0}});
  std::printf("\n");
  PrintTable(report["pages"], {{"profiles in use", "profiles"},
                               {"page ms", "milliseconds", 2},
                               {"best ms", "best_milliseconds", 2},
                               {"p99 ms", "p99_milliseconds", 2},
                               {"MB", "megabytes", 2}});
}

}  // namespace

void AddObserveCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("observe", "Cost of metrics: of a step, and of a page");
  const auto count = [&](const char* flag, int& value, const char* what, int most) {
    command->add_option(flag, value, what)->check(CLI::Range(1, most))->capture_default_str();
  };
  count("--layers", options->layers, "Of the model", 1024);
  count("--heads", options->heads, "Query heads", 1024);
  count("--kv_heads", options->kv_heads, "", 1024);
  count("--rows", options->rows, "Decode rows of a step", 16384);
  count("--context", options->context, "Tokens that each row may attend", 1 << 20);
  command
      ->add_option("--series", options->series, "Tenants with a profile each that share the rows")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--profiles", options->profiles, "In use; a page is timed for each number")
      ->delimiter(',')
      ->check(CLI::Range(1, TelemetryOptions::kMaxLabels))
      ->capture_default_str();
  command->add_option("--step_milliseconds", options->step_milliseconds, "What a step takes")
      ->check(CLI::Range(0.001, 60'000.0))
      ->capture_default_str();
  count("--samples", options->samples, "Steps that are timed; the median counts", 1'000'000);
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
