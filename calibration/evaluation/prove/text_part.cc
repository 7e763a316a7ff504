#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/prove/proof_parts.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr const char* kTextPart = "perplexity";
constexpr int32_t kLeastContext = 256;  // tokens of a window
constexpr double kSparseRow = 2.0;      // of decode rows in steps, over those of a prompt

class Texts : public ProofPart {
 public:
  explicit Texts(const ProofBench& bench) : bench_(bench), texts_(bench.bench.Texts()) {
    double work = 0.0;
    for (size_t i = 0; i < texts_.size(); ++i) work += Find(i) == nullptr ? Work() : 0.0;
    bench_.clock.SetLeft(kTextPart, work);
  }

  absl::Status Measure(ProofScores& scores) override {
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (Find(i) == nullptr) {
        RETURN_IF_ERROR(Score(i));
        bench_.clock.Took(kTextPart, Work());
      }
      const auto& numbers = Find(i)->numbers;
      TextScore score = {.text = texts_[i].name,
                         .context = numbers.at("context"),
                         .windows = numbers.at("windows"),
                         .tokens = numbers.at("tokens"),
                         .loss = numbers.at("loss"),
                         .more = {.mean = numbers.at("more"), .half_width = std::nullopt},
                         .kl = numbers.at("kl"),
                         .top_1 = numbers.at("top_1"),
                         .full_top_1 = numbers.at("full_top_1"),
                         .union_density = numbers.at("union"),
                         .bytes_read = numbers.at("bytes")};
      const auto half = numbers.find("more_half_width");
      if (half != numbers.end()) score.more.half_width = half->second;
      scores.texts.push_back(std::move(score));
    }
    return absl::OkStatus();
  }

 private:
  std::string UnitName(size_t i) const {
    return absl::StrCat("perplexity/", i, "/", texts_[i].name);
  }
  const ProofUnit* Find(size_t i) const {
    return bench_.log.Find(UnitName(i), {"context", "windows", "tokens", "loss", "more", "kl",
                                         "top_1", "full_top_1", "union", "bytes"});
  }
  double Work() const { return (1.0 + kSparseRow) * bench_.plan.windows * bench_.plan.longest(); }

  // The longest that the text fills.
  absl::StatusOr<std::vector<std::vector<int32_t>>> Windows(const BenchText& text) const {
    for (int32_t context = bench_.plan.longest();; context /= 2) {
      auto windows = bench_.bench.Windows(text, context, bench_.plan.windows);
      const bool short_text = GetErrorDetail(windows.status()).field == "context";
      if (!short_text || context / 2 < kLeastContext) return windows;
    }
  }

  absl::Status Score(size_t i) {
    ASSIGN_OR_RETURN(const auto windows, Windows(texts_[i]));
    const auto context = static_cast<int32_t>(windows.front().size()) - 1;
    const int32_t prefill = context / 2;
    const double rows = static_cast<double>(windows.size()) * (context - prefill);
    const RunnerSource runners = OnlyRunner(bench_.runner);
    ASSIGN_OR_RETURN(const std::vector<AttentionScore> scores,
                     EvaluatePerplexity(runners, windows, bench_.ways,
                                        {.prefill = prefill,
                                         .recall = false,
                                         .special_ids = bench_.bench.tokenizer().special_ids(),
                                         .rivals = &bench_.bench.rivals(),
                                         .kl = std::min(1.0, bench_.plan.kl_rows / rows)}));
    const AttentionScore& sparse = scores[1];
    ProofUnit unit;
    unit.numbers = {{"context", context},
                    {"windows", static_cast<double>(windows.size())},
                    {"tokens", rows},
                    {"loss", scores[0].loss.mean},
                    {"more", sparse.loss_over_first.mean},
                    {"kl", sparse.divergence.value_or(0.0)},
                    {"top_1", sparse.top_1},
                    {"full_top_1", scores[0].top_1},
                    {"union", sparse.union_density},
                    {"bytes", sparse.bytes_read()}};
    if (sparse.loss_over_first.half_width) {
      unit.numbers["more_half_width"] = *sparse.loss_over_first.half_width;
    }
    return bench_.log.Add(UnitName(i), std::move(unit));
  }

  const ProofBench bench_;
  const std::vector<BenchText> texts_;
};

}  // namespace

std::unique_ptr<ProofPart> TextPart(const ProofBench& bench) {
  return std::make_unique<Texts>(bench);
}

}  // namespace eta
