// The thresholds of the predictor against constants that calibration made of them (the paper's
// Algorithm 1): at the length that was calibrated at, and at twice that.

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/calibrate/collected_cells.h"
#include "calibration/evaluation/attention/sequence_settings.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "calibration/solvers/frozen_threshold.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

using Windows = std::vector<std::vector<int32_t>>;

constexpr int32_t kCalibrationWindows = 16;  // the paper's
constexpr int32_t kMostLength = 1 << 24;

// Runs windows as prompts under the predictor's thresholds and solves the constants, [L, HQ].
class Calibration {
 public:
  Calibration(SequenceRunner& runner, Backend& backend, std::span<const int32_t> special_ids)
      : runner_(runner), backend_(backend), special_ids_(special_ids) {}

  absl::StatusOr<std::vector<float>> Solve(const Windows& windows,
                                           const EvaluatedAttention& attention) {
    const ModelConfig& config = runner_.config();
    ASSIGN_OR_RETURN(auto collected,
                     CollectedCells::Create(config.num_layers, config.num_query_heads, bins_));
    for (const std::vector<int32_t>& window : windows) {
      const auto tokens = std::span(window).first(window.size() - 1);
      ASSIGN_OR_RETURN(std::vector<uint64_t> cells, Cells(tokens, attention));
      RETURN_IF_ERROR(collected.Add(cells, static_cast<int64_t>(tokens.size())));
    }
    ASSIGN_OR_RETURN(
        const auto solved,
        SolveFrozenThresholds(collected.histogram(),
                              {.beta = config.beta, .offset = attention.options.offset}));
    std::vector<float> thresholds;
    for (const FrozenThreshold& head : solved) {
      thresholds.push_back(static_cast<float>(head.threshold));
    }
    return thresholds;
  }

 private:
  absl::StatusOr<std::vector<uint64_t>> Cells(std::span<const int32_t> tokens,
                                              const EvaluatedAttention& attention) {
    const ModelConfig& config = runner_.config();
    std::vector<uint64_t> cells(static_cast<size_t>(config.num_layers) *
                                static_cast<size_t>(config.num_query_heads) *
                                static_cast<size_t>(CalibrationCells(bins_).size()));
    const size_t bytes = cells.size() * sizeof(uint64_t);
    ASSIGN_OR_RETURN(auto buffer, backend_.Allocate(bytes));
    backend_.Upload(buffer->data(), cells.data(), bytes);
    RETURN_IF_ERROR(runner_.Begin(
        SequenceSettingsOf(attention, special_ids_, config, static_cast<int64_t>(tokens.size()))));
    const auto most = static_cast<size_t>(runner_.max_rows());
    for (size_t begin = 0; begin < tokens.size(); begin += most) {
      RETURN_IF_ERROR(runner_.Run(
          {.tokens = tokens.subspan(begin, std::min(most, tokens.size() - begin)),
           .kind = RowKind::kPrefill,
           .calibrate = true,
           .outputs = {.cells = reinterpret_cast<uint64_t*>(buffer->data()), .bins = bins_}}));
    }
    backend_.Download(cells.data(), buffer->data(), bytes);
    return cells;
  }

  SequenceRunner& runner_;
  Backend& backend_;
  std::span<const int32_t> special_ids_;
  ScoreBins bins_;
};

absl::StatusOr<std::vector<AttentionScore>> Compare(ArmBench& arms, const Windows& windows,
                                                    const std::vector<float>& thresholds) {
  ASSIGN_OR_RETURN(auto dynamic, arms.Attention(kDefaultArm));
  EvaluatedAttention frozen = dynamic;
  auto profile = std::make_shared<ThresholdProfile>();
  profile->num_layers = arms.bench().config().num_layers;
  profile->num_query_heads = arms.bench().config().num_query_heads;
  profile->thresholds = thresholds;
  frozen.profile = std::move(profile);
  const EvaluatedAttention both[] = {std::move(dynamic), std::move(frozen)};
  return EvaluatePerplexity(arms.runners().Source(), windows, both,
                            {.prefill = static_cast<int32_t>(windows.front().size() - 1) / 2,
                             .special_ids = arms.bench().tokenizer().special_ids()});
}

struct PaperFrozen {
  double perplexity, head;
};
constexpr PaperFrozen kPaperFrozen[2][2] = {{{91.96, .2414}, {91.60, .2240}},
                                            {{100.52, .4477}, {100.48, .3283}}};

}  // namespace

absl::StatusOr<Table> MeasureFrozen(TableBench& bench) {
  if (!bench.config().has_predictor) {
    return absl::FailedPreconditionError("the model predicts no thresholds that could be frozen");
  }
  // Twice the length must still be served.
  const int32_t length = std::min(bench.Context(2048, 512), kMostLength / 2);
  ArmBench arms(bench, 2 * length);
  const BenchText text = bench.Texts().back();
  // Every other window calibrates; windows of both lengths are judged.
  const int32_t count = bench.Samples(kCalibrationWindows, 4);
  ASSIGN_OR_RETURN(const auto cut, bench.Windows(text, length, 2 * count));
  Windows calibration;
  Windows judged[2];
  for (size_t i = 0; i < cut.size(); ++i) {
    (i % 2 == 0 ? calibration : judged[0]).push_back(cut[i]);
  }
  if (judged[0].empty()) {
    return absl::InvalidArgumentError("text: it fills one window, and frozen takes two");
  }
  ASSIGN_OR_RETURN(judged[1], bench.Windows(text, 2 * length, (count + 1) / 2));
  ASSIGN_OR_RETURN(const auto runner, arms.runners().For(bench.Geometry()));
  ASSIGN_OR_RETURN(const auto dynamic, arms.Attention(kDefaultArm));
  ASSIGN_OR_RETURN(const auto thresholds, Calibration(*runner, *bench.runtime().shared_backend(),
                                                      bench.tokenizer().special_ids())
                                              .Solve(calibration, dynamic));
  bench.Progress(1, 3);
  Table table = {.name = "frozen",
                 .title = "Dynamic against calibrated thresholds",
                 .method = absl::StrCat(
                     "One constant per layer and head, solved on ", calibration.size(),
                     " windows so that each head keeps the mean gate of its predicted thresholds. "
                     "Perplexity of the second half of other windows, decoded, and at twice the "
                     "length, where windows overlap those of the calibration; the ratio to dynamic "
                     "thresholds is paired by token; intervals over windows."),
                 .paper = "Table of frozen thresholds, 126M, C4 at 1024 and 2048 tokens",
                 .counted = "tokens",
                 .settings = {{"text", text.name}, {"length", absl::StrCat(length)}},
                 .keys = {"length", "thresholds"},
                 .columns = {{.name = "perplexity", .digits = 3},
                             {.name = "ratio", .digits = 4},
                             Percent("head", 2),
                             Percent("union", 2),
                             Percent("recall")}};
  for (size_t at = 0; at < 2; ++at) {
    ASSIGN_OR_RETURN(const auto scores, Compare(arms, judged[at], thresholds));
    for (size_t i = 0; i < 2; ++i) {
      const AttentionScore& score = scores[i];
      const auto tokens = static_cast<int64_t>(score.losses.size());
      table.rows.push_back(
          {.labels = {absl::StrCat(length << at), i == 0 ? "dynamic" : "calibrated"},
           .cells = {WithPaper(ExpCell(score.loss, tokens), kPaperFrozen[at][i].perplexity),
                     i == 0 ? TableCell() : ExpCell(score.loss_over_first, tokens),
                     WithPaper(PlainCell(score.head_density), kPaperFrozen[at][i].head),
                     PlainCell(score.union_density),
                     score.recall ? PlainCell(*score.recall) : TableCell()},
           .n = tokens});
    }
    bench.Progress(static_cast<int64_t>(at) + 2, 3);
  }
  return table;
}

}  // namespace eta
