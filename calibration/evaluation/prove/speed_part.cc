#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/attention/sequence_settings.h"
#include "calibration/evaluation/prove/proof_parts.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr const char* kSpeedPart = "speed";

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

class Speed : public ProofPart {
 public:
  explicit Speed(const ProofBench& bench) : bench_(bench) {
    if (bench.ways[1].rival) return;
    double work = 0.0;
    for (const int32_t context : Contexts()) work += Find(context) == nullptr ? Work(context) : 0.0;
    bench_.clock.SetLeft(kSpeedPart, work);
  }

  absl::Status Measure(ProofScores& scores) override {
    if (bench_.ways[1].rival) {
      scores.no_speed = "a rival chooses blocks on the host";
      return absl::OkStatus();
    }
    for (const int32_t context : Contexts()) {
      if (Find(context) == nullptr) {
        RETURN_IF_ERROR(Time(context));
        bench_.clock.Took(kSpeedPart, Work(context));
      }
      const auto& numbers = Find(context)->numbers;
      scores.speeds.push_back({.context = context,
                               .full_ms = numbers.at("full_ms"),
                               .sparse_ms = numbers.at("sparse_ms"),
                               .ratio = numbers.at("ratio")});
    }
    if (scores.speeds.empty()) scores.no_speed = "no context is short enough for this length";
    return absl::OkStatus();
  }

 private:
  std::vector<int32_t> Contexts() const {
    std::vector<int32_t> contexts = bench_.plan.speed_contexts;
    std::erase_if(contexts, [&](int32_t context) {
      return context + bench_.plan.speed_steps > bench_.plan.longest();
    });
    return contexts;
  }
  static std::string UnitName(int32_t context) { return absl::StrCat("speed/", context); }
  const ProofUnit* Find(int32_t context) const {
    return bench_.log.Find(UnitName(context), {"full_ms", "sparse_ms", "ratio"});
  }
  double Work(int32_t context) const {
    return context +
           2.0 * (1 + bench_.plan.speed_turns) * bench_.plan.speed_steps * ProofClock::kStep;
  }

  // Text of the first file that is long enough.
  absl::StatusOr<std::vector<int32_t>> Tokens(int32_t count) const {
    absl::Status status = InvalidField("text", "there is none");
    for (const BenchText& text : bench_.bench.Texts()) {
      auto windows = bench_.bench.Windows(text, count, 1);
      if (windows.ok()) return std::move(windows->front());
      status = windows.status();
    }
    return status;
  }

  absl::Status Time(int32_t context) {
    const int32_t steps = bench_.plan.speed_steps;
    ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Tokens(context + steps));
    bench_.bench.rivals().Use(nullptr);
    const auto settings = [&](size_t way) {
      return SequenceSettingsOf(bench_.ways[way], bench_.bench.tokenizer().special_ids(),
                                bench_.runner.config(), context + steps);
    };
    RETURN_IF_ERROR(bench_.runner.Begin(settings(0)));
    RETURN_IF_ERROR(bench_.runner.RunPrompt(std::span(tokens).first(static_cast<size_t>(context))));
    bench_.runner.Mark();
    std::array<std::vector<double>, 2> times;  // ms of a step
    std::vector<double> ratios;
    for (int32_t turn = 0; turn <= bench_.plan.speed_turns; ++turn) {
      // The first turn warms up, and who begins changes.
      std::array<double, 2> now = {};
      for (const size_t way : {size_t(turn % 2), size_t((turn + 1) % 2)}) {
        RETURN_IF_ERROR(bench_.runner.Return(settings(way)));
        ASSIGN_OR_RETURN(now[way], Steps(tokens, context));
      }
      if (turn == 0) continue;
      for (size_t way = 0; way < now.size(); ++way) times[way].push_back(now[way]);
      ratios.push_back(now[0] / now[1]);
    }
    ProofUnit unit;
    unit.numbers = {{"full_ms", MedianOf(times[0])},
                    {"sparse_ms", MedianOf(times[1])},
                    {"ratio", MedianOf(ratios)}};
    return bench_.log.Add(UnitName(context), std::move(unit));
  }

  // Milliseconds of a step behind the prompt, its likeliest token included.
  absl::StatusOr<double> Steps(std::span<const int32_t> tokens, int32_t context) {
    const auto start = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < bench_.plan.speed_steps; ++i) {
      const auto at = static_cast<size_t>(context + i);
      float logprob = 0.0f;
      int32_t best = 0;
      RETURN_IF_ERROR(bench_.runner.Run({.tokens = tokens.subspan(at, 1),
                                         .kind = RowKind::kDecode,
                                         .targets = tokens.subspan(at + 1, 1),
                                         .logprobs = std::span(&logprob, 1),
                                         .best = std::span(&best, 1)}));
    }
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    return taken.count() / bench_.plan.speed_steps;
  }

  const ProofBench bench_;
};

}  // namespace

std::unique_ptr<ProofPart> SpeedPart(const ProofBench& bench) {
  return std::make_unique<Speed>(bench);
}

}  // namespace eta
