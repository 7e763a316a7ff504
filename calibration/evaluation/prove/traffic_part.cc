#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/prove/greedy_pair.h"
#include "calibration/evaluation/prove/proof_parts.h"
#include "calibration/evaluation/text/text_source.h"
#include "calibration/solvers/sample_split.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr const char* kTrafficPart = "traffic";

class Traffic : public ProofPart {
 public:
  Traffic(const ProofBench& bench, TrafficPrompts prompts)
      : bench_(bench),
        prompts_(std::move(prompts)),
        pair_(bench.runner, bench.bench.rivals(), bench.bench.tokenizer(), bench.ways) {
    double work = 0.0;
    for (size_t i = 0; i < prompts_.prompts.size(); ++i) {
      if (Find(i) == nullptr) work += Work(i);
    }
    bench_.clock.SetLeft(kTrafficPart, work);
  }

  absl::Status Measure(ProofScores& scores) override {
    scores.long_prompts = prompts_.too_long;
    for (size_t i = 0; i < prompts_.prompts.size(); ++i) {
      if (Find(i) == nullptr) {
        RETURN_IF_ERROR(GoOn(i));
        bench_.clock.Took(kTrafficPart, Work(i));
      }
      const auto& numbers = Find(i)->numbers;
      scores.traffic.push_back({.tokens = numbers.at("tokens"),
                                .agreed = numbers.at("agreed"),
                                .compared = numbers.at("compared"),
                                .same = numbers.at("same"),
                                .kl = numbers.at("kl")});
    }
    return absl::OkStatus();
  }

 private:
  static std::string UnitName(size_t i) { return absl::StrCat("traffic/", i); }
  const ProofUnit* Find(size_t i) const {
    return bench_.log.Find(UnitName(i), {"tokens", "agreed", "compared", "same", "kl"});
  }
  double Work(size_t i) const {
    return 3.0 * static_cast<double>(prompts_.prompts[i].size()) +
           2.0 * bench_.plan.continuation * ProofClock::kStep;
  }

  absl::Status GoOn(size_t i) {
    const std::vector<int32_t>& prompt = prompts_.prompts[i];
    pair_.Begin(prompt, bench_.plan.continuation);
    const auto always = [](std::span<const int32_t>) { return true; };
    ASSIGN_OR_RETURN(const std::vector<int32_t> full, pair_.Continue(0, always));
    const auto agrees = [&full](std::span<const int32_t> tokens) {
      return tokens.size() < full.size() && tokens.back() == full[tokens.size() - 1];
    };
    ASSIGN_OR_RETURN(const std::vector<int32_t> sparse, pair_.Continue(1, agrees));
    const auto parted = std::ranges::mismatch(full, sparse).in1;

    ProofUnit unit;
    unit.numbers = {{"tokens", static_cast<double>(full.size())},
                    {"agreed", static_cast<double>(parted - full.begin())},
                    {"compared", 0.0},
                    {"same", 0.0},
                    {"kl", 0.0}};
    // The first token is the prompt's.
    if (full.size() > 1) {
      std::vector<std::vector<int32_t>> window = {prompt};
      window.front().insert(window.front().end(), full.begin(), full.end());
      const RunnerSource runners = OnlyRunner(bench_.runner);
      ASSIGN_OR_RETURN(const std::vector<AttentionScore> scores,
                       EvaluatePerplexity(runners, window, bench_.ways,
                                          {.prefill = static_cast<int32_t>(prompt.size()),
                                           .recall = false,
                                           .special_ids = bench_.bench.tokenizer().special_ids(),
                                           .rivals = &bench_.bench.rivals(),
                                           .kl = 1.0}));
      const auto compared = static_cast<double>(full.size() - 1);
      unit.numbers["compared"] = compared;
      unit.numbers["same"] = compared * scores[1].top_1;
      unit.numbers["kl"] = compared * scores[1].divergence.value_or(0.0);
    }
    return bench_.log.Add(UnitName(i), std::move(unit));
  }

  const ProofBench bench_;
  const TrafficPrompts prompts_;
  GreedyPair pair_;
};

}  // namespace

absl::StatusOr<TrafficPrompts> ReadTraffic(const std::string& path, const Tokenizer& tokenizer,
                                           bool parse_special, const ProofPlan& plan) {
  absl::StatusOr<std::unique_ptr<TextSource>> opened = TextSource::Open(path);
  if (!opened.ok()) return InField("traffic", opened.status());
  TextSource& source = **opened;
  TrafficPrompts traffic;
  size_t tokens = 0;
  while (true) {
    const absl::StatusOr<std::optional<std::string>> prompt = source.Next();
    if (!prompt.ok()) return InField("traffic", prompt.status());
    if (!prompt->has_value()) break;
    absl::StatusOr<std::vector<int32_t>> ids =
        tokenizer.Encode(**prompt, /*add_bos=*/true, parse_special);
    if (!ids.ok()) return InField("traffic", source.InDocument(ids.status()));
    if (ids->empty()) continue;
    if (std::ssize(*ids) + plan.continuation > plan.longest()) {
      ++traffic.too_long;
      continue;
    }
    tokens += ids->size();
    RETURN_IF_ERROR(CheckTextTokens(tokens));
    traffic.prompts.push_back(*std::move(ids));
  }
  traffic.prompts = KeepSpread(std::move(traffic.prompts), plan.prompts);
  if (!traffic.prompts.empty()) return traffic;
  return InvalidField("traffic",
                      absl::StrCat("no prompt of at most ", plan.longest() - plan.continuation,
                                   " tokens; ", traffic.too_long, " are longer"));
}

std::unique_ptr<ProofPart> TrafficPart(const ProofBench& bench, TrafficPrompts prompts) {
  return std::make_unique<Traffic>(bench, std::move(prompts));
}

}  // namespace eta
