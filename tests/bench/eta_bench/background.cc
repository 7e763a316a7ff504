// eta-bench background: the effect of calibration on streams beside it. An engine in this process
// serves streams, by turns without and with passes queued. Then passes have the engine to
// themselves.

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/front/engine.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/testing/engine/submit.h"

namespace eta::bench {
namespace {

struct Options {
  DeviceFlags device;
  std::string model = "models/eta-27m";
  int streams = 8;
  int prompt_tokens = 512;
  int pass_tokens = 2048;
  int turns = 3;
  double seconds = 5.0;  // of each turn
};

constexpr int kPasses = 64;  // queued at a time

// The times between the tokens of a stream in one turn.
class Gaps {
 public:
  void Add(double seconds) {
    const std::lock_guard lock(mutex_);
    seconds_.push_back(seconds);
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return seconds_.size();
  }
  std::vector<double> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(seconds_, {});
  }

 private:
  mutable std::mutex mutex_;
  std::vector<double> seconds_;
};

class StreamSink final : public EventSink {
 public:
  explicit StreamSink(Gaps& gaps) : gaps_(gaps) {}

  void OnStarted(StartedEvent) override {}
  void OnPrefill(PrefillEvent) override {}
  void OnDelta(DeltaEvent) override {
    const auto now = Clock::now();
    if (last_) gaps_.Add(std::chrono::duration<double>(now - *last_).count());
    last_ = now;
  }
  void OnFinished(FinishedEvent) override {}
  void OnFailed(absl::Status, FinishedEvent) override {}
  bool Congested() const override { return false; }

 private:
  Gaps& gaps_;
  std::optional<Clock::time_point> last_;
};

class PassCount final : public PassSink {
 public:
  void OnProgress(int32_t) override {}
  void OnEnded(absl::StatusOr<PassOutcome> outcome) override {
    if (!outcome.ok() && !absl::IsCancelled(outcome.status())) RequireOk(outcome.status());
  }
};

// The rows and seconds of steps of requests and of steps of passes.
class StepSums : public Observer {
 public:
  struct Sums {
    int64_t rows = 0;
    int64_t steps = 0;
    double seconds = 0.0;
  };

  void OnStep(const StepReport& report) override {
    const std::lock_guard lock(mutex_);
    Sums& sums = report.pass_rows > 0 ? passes_ : requests_;
    sums.rows += report.pass_rows + report.prefill_rows + report.decode_rows;
    ++sums.steps;
    sums.seconds += std::chrono::duration<double>(report.duration).count();
  }
  void OnRequestEnd(const Request&, const absl::Status&, const FinishedEvent&) override {}

  std::pair<Sums, Sums> Take() {  // first requests, then passes
    const std::lock_guard lock(mutex_);
    return {std::exchange(requests_, {}), std::exchange(passes_, {})};
  }

 private:
  std::mutex mutex_;
  Sums requests_;
  Sums passes_;
};

// One engine and the load on it.
class Load {
 public:
  explicit Load(const Options& options) : options_(options), random_(options.device.seed) {
    EngineOptions engine;
    engine.model_dir = options.model;
    engine.backend.name = options.device.backend;
    engine.backend.num_threads = options.device.threads;
    engine.devices = {options.device.device};
    engine.max_running = std::max(64, options.streams);
    engine_ = Require(Engine::Create(engine, &steps_));
  }
  const Engine& engine() const { return *engine_; }

  // Runs one turn. Adds its gaps to `gaps` and returns the sums of its steps.
  std::pair<StepSums::Sums, StepSums::Sums> Turn(int streams, bool passes,
                                                 std::vector<double>& gaps) {
    std::vector<uint64_t> handles;
    for (int i = 0; i < streams; ++i) handles.push_back(Stream());
    if (passes) {
      for (int i = 0; i < kPasses; ++i) handles.push_back(Pass(i));
    }
    // Waits for the prompts first, which may take a slow machine longer than a turn.
    const auto wait = [&](double seconds) {
      Sleep(seconds);
      while (gaps_.size() < static_cast<size_t>(streams)) Sleep(0.01);
    };
    wait(0.2 * options_.seconds);
    gaps_.Take();
    steps_.Take();
    wait(options_.seconds);
    const std::vector<double> more = gaps_.Take();
    gaps.insert(gaps.end(), more.begin(), more.end());
    const auto steps = steps_.Take();
    for (const uint64_t handle : handles) engine_->Cancel(handle);
    for (EngineSnapshot left = engine_->Snapshot();
         left.running + left.waiting + left.passes_running + left.passes_waiting > 0;
         left = engine_->Snapshot()) {
      Sleep(0.01);
    }
    return steps;
  }

 private:
  static void Sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  std::vector<int32_t> Tokens(int count) {
    std::uniform_int_distribution<int32_t> id(300, engine_->info().config.vocab_size - 1);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = id(random_);
    return tokens;
  }
  uint64_t Stream() {
    Request request;
    request.id = "stream";
    request.prompt = Tokens(options_.prompt_tokens);
    request.stopping.max_tokens = engine_->limits().max_output_tokens;
    request.stopping.ignore_eos = true;
    request.output.ids = true;
    request.deadline = Clock::now() + std::chrono::hours(1);
    return Require(
        testing::Submit(*engine_, std::move(request), std::make_shared<StreamSink>(gaps_)));
  }
  // A pass as calibration sends it: cells of a prompt, or losses and recall of decode rows.
  uint64_t Pass(int i) {
    eta::Pass pass;
    pass.id = "pass";
    pass.tokens = Tokens(options_.pass_tokens);
    pass.decode_from = i % 2 == 0 ? options_.pass_tokens : options_.pass_tokens / 4;
    if (i % 2 == 0) {
      pass.bins = ScoreBins();
    } else {
      pass.loss_from = pass.decode_from;
      pass.recall = true;
    }
    return Require(engine_->SubmitPass(std::move(pass), std::make_shared<PassCount>()));
  }

  const Options options_;
  std::mt19937_64 random_;
  Gaps gaps_;
  StepSums steps_;
  std::unique_ptr<Engine> engine_;  // last member: its threads use the others
};

Json Milliseconds(std::vector<double> gaps) {
  if (gaps.empty()) Fail("no tokens came");
  std::sort(gaps.begin(), gaps.end());
  const auto at = [&](double share) {
    return 1e3 * gaps[std::min(gaps.size() - 1,
                               static_cast<size_t>(share * static_cast<double>(gaps.size())))];
  };
  return {{"tokens", gaps.size()}, {"p50", at(0.5)},     {"p90", at(0.9)},
          {"p99", at(0.99)},       {"p99.9", at(0.999)}, {"max", 1e3 * gaps.back()}};
}

Json Run(const Options& options) {
  Load load(options);
  std::vector<double> gaps[2];
  StepSums::Sums requests;
  StepSums::Sums passes;
  for (int turn = 0; turn < 2 * options.turns; ++turn) {
    const bool beside = turn % 2 == 1;
    const auto [own, background] = load.Turn(options.streams, beside, gaps[beside ? 1 : 0]);
    if (!beside) continue;
    requests.steps += own.steps;
    requests.seconds += own.seconds;
    passes.rows += background.rows;
    passes.steps += background.steps;
    passes.seconds += background.seconds;
  }
  std::vector<double> none;
  const StepSums::Sums alone = load.Turn(0, true, none).second;
  Json without = Milliseconds(gaps[0]);
  Json with = Milliseconds(gaps[1]);
  without["streams"] = "alone";
  with["streams"] = "with passes";
  const double ratio = with["p99"].get<double>() / without["p99"].get<double>();
  return {{"bench", "background"},
          {"backend", load.engine().info().backend},
          {"streams", options.streams},
          {"prompt_tokens", options.prompt_tokens},
          {"pass_tokens", options.pass_tokens},
          {"between_tokens_milliseconds", {std::move(without), std::move(with)}},
          {"p99_ratio", ratio},
          {"pass_share_of_steps",
           static_cast<double>(passes.steps) / static_cast<double>(passes.steps + requests.steps)},
          {"pass_share_of_time", passes.seconds / (passes.seconds + requests.seconds)},
          {"pass_rows_per_s_beside",
           static_cast<double>(passes.rows) / (options.turns * options.seconds)},
          {"pass_rows_per_s_alone", static_cast<double>(alone.rows) / options.seconds}};
}

void Print(const Json& report) {
  std::printf("%s: %d streams\n\n", report["backend"].get<std::string>().c_str(),
              report["streams"].get<int>());
  PrintTable(report["between_tokens_milliseconds"], {{"between tokens, ms", "streams"},
                                                     {"tokens", "tokens"},
                                                     {"p50", "p50", 2},
                                                     {"p90", "p90", 2},
                                                     {"p99", "p99", 2},
                                                     {"p99.9", "p99.9", 2},
                                                     {"max", "max", 2}});
  std::printf(
      "\np99 with passes / without: %.2f\npasses: %.1f %% of the steps, %.1f %% of the time; %.0f "
      "rows/s beside streams, %.0f rows/s alone\n",
      report["p99_ratio"].get<double>(), 100.0 * report["pass_share_of_steps"].get<double>(),
      100.0 * report["pass_share_of_time"].get<double>(),
      report["pass_rows_per_s_beside"].get<double>(),
      report["pass_rows_per_s_alone"].get<double>());
}

}  // namespace

void AddBackgroundCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("background", "Streams with calibration beside them");
  AddDeviceFlags(*command, options->device);
  const auto count = [&](const char* flag, int& value, const char* what, int least, int most) {
    command->add_option(flag, value, what)->check(CLI::Range(least, most))->capture_default_str();
  };
  command->add_option("--model", options->model, "Folder of the checkpoint")->capture_default_str();
  count("--streams", options->streams, "Requests at a time", 1, 1024);
  count("--prompt_tokens", options->prompt_tokens, "Of every request, at random", 1, 1 << 14);
  count("--pass_tokens", options->pass_tokens, "Of every pass, at random", 8, 1 << 14);
  count("--turns", options->turns, "Without passes, and as often with", 1, 1000);
  command->add_option("--seconds", options->seconds, "Of each turn")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
