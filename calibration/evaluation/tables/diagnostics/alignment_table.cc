#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/perplexity/alignment.h"
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"
#include "calibration/evaluation/tables/diagnostics/observation.h"
#include "calibration/evaluation/tables/measures/residual_recorder.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// Sums over the rows of a window.
constexpr size_t kCosine = 0;
constexpr size_t kShift = 1;
constexpr size_t kKl = 2;
constexpr size_t kSameBest = 3;
constexpr size_t kTerms = 4;
constexpr size_t kSums = 5;

// Per layer, and behind the last one of the logits: [L + 1][windows][kSums].
using Alignments = LayerSums;

// Runs a window's rows, those before `decode_from` as a prompt, the rest as decode rows, and takes
// the logits of the latter.
absl::Status RunWindow(SequenceRunner& runner, std::span<const int32_t> window, size_t rows,
                       size_t decode_from) {
  std::vector<float> logprobs(static_cast<size_t>(runner.max_rows()));
  RETURN_IF_ERROR(runner.RunPrompt(window.first(decode_from)));
  for (size_t begin = decode_from; begin < rows; begin += logprobs.size()) {
    const size_t count = std::min(logprobs.size(), rows - begin);
    RETURN_IF_ERROR(runner.Run({.tokens = window.subspan(begin, count),
                                .targets = window.subspan(begin + 1, count),
                                .logprobs = std::span(logprobs).first(count)}));
  }
  return absl::OkStatus();
}

void AddWindow(const RecordedResiduals& full, const RecordedResiduals& sparse, Alignments& sums) {
  for (size_t l = 0; l < sums.size(); ++l) {
    std::vector<double>& window = sums[l].emplace_back(kSums);
    for (size_t r = 0; r < full.positions.size(); ++r) {
      window[kTerms] += 1.0;
      if (l == full.layers.size()) {
        const LogitAlignment logits = AlignLogits(full.logits[r], sparse.logits[r]);
        window[kCosine] += logits.cosine;
        window[kKl] += logits.kl;
        window[kSameBest] += logits.same_best ? 1.0 : 0.0;
        continue;
      }
      const VectorAlignment residual = AlignVectors(full.layers[l][r], sparse.layers[l][r]);
      window[kCosine] += residual.cosine;
      window[kShift] += residual.shift;
    }
  }
}

// Of each of `attentions` against full attention.
absl::StatusOr<std::vector<Alignments>> Align(TableBench& bench, const DiagnosticSample& sample,
                                              std::span<const std::string> attentions) {
  const KvGeometry geometry = bench.Geometry();
  std::vector<EvaluatedAttention> ways;
  ASSIGN_OR_RETURN(const auto full, bench.Attention("full", geometry));
  for (const std::string& name : attentions) {
    ASSIGN_OR_RETURN(const auto way, bench.Attention(name, geometry));
    ways.push_back(way);
  }
  ResidualRecorder recorder(bench.runtime().shared_backend(), bench.config(), sample.rows);
  ASSIGN_OR_RETURN(const auto runner, bench.MakeRunner(geometry, sample.context, &recorder));
  const auto rows = static_cast<size_t>(sample.context);
  const auto decode_from = static_cast<size_t>(sample.rows.first);
  std::vector<Alignments> sums(ways.size(),
                               Alignments(static_cast<size_t>(bench.config().num_layers) + 1));
  const auto steps = static_cast<int64_t>(sample.windows.size() * (ways.size() + 1));
  int64_t done = 0;
  for (const std::vector<int32_t>& window : sample.windows) {
    const auto run = [&](const EvaluatedAttention& way) {
      bench.Progress(done++, steps);
      recorder.Begin();
      const absl::Status begun = BeginWindow(*runner, bench, way, rows);
      return begun.ok() ? RunWindow(*runner, window, rows, decode_from) : begun;
    };
    RETURN_IF_ERROR(run(full));
    const RecordedResiduals of_full = recorder.recorded();
    for (size_t i = 0; i < ways.size(); ++i) {
      RETURN_IF_ERROR(run(ways[i]));
      AddWindow(of_full, recorder.recorded(), sums[i]);
    }
  }
  bench.Progress(steps, steps);
  return sums;
}

// Means over layers, and the logits', which the paper reports of its two models.
struct PaperAlignment {
  double cosine;
  double shift;
  double logit_cosine;
  double kl;
};
constexpr PaperAlignment kPaperAlignment = {0.9691, 0.2277, 0.9959, 0.0631};  // 126M parameters
constexpr double kPaperTop1 = 1.0;                                            // 1.45B

void AddRows(const std::string& attention, const Alignments& sums, int64_t n, Table& table) {
  const auto residual = [&](const std::string& label,
                            const std::vector<std::vector<double>>& windows, bool mean) {
    const auto paper = [&](double value) { return mean ? std::optional(value) : std::nullopt; };
    table.rows.push_back(
        {.labels = {attention, label},
         .cells = {RatioCell(windows, kCosine, kTerms, paper(kPaperAlignment.cosine)),
                   RatioCell(windows, kShift, kTerms, paper(kPaperAlignment.shift)), TableCell(),
                   TableCell()},
         .n = n});
  };
  const LayerSums layers(sums.begin(), sums.end() - 1);
  for (size_t l = 0; l < layers.size(); ++l) {
    residual(absl::StrCat("layer ", l), layers[l], false);
  }
  residual("all layers", AllLayers(layers), true);
  const auto& logits = sums.back();
  table.rows.push_back({.labels = {attention, "logits"},
                        .cells = {RatioCell(logits, kCosine, kTerms, kPaperAlignment.logit_cosine),
                                  TableCell(), RatioCell(logits, kKl, kTerms, kPaperAlignment.kl),
                                  RatioCell(logits, kSameBest, kTerms, kPaperTop1)},
                        .n = n});
}

}  // namespace

absl::StatusOr<Table> MeasureAlignment(TableBench& bench) {
  ASSIGN_OR_RETURN(const DiagnosticSample sample, TakeSample(bench));
  std::vector<std::string> attentions = {"dynamic"};
  if (bench.config().gate != Gate::kNone) attentions.push_back("dynamic+floor=none+z=2");
  ASSIGN_OR_RETURN(const auto sums, Align(bench, sample, attentions));

  Table table = {
      .name = "alignment",
      .title = "Sparse against full attention: residual stream and logits",
      .method = absl::StrCat(
          "Every row from ", sample.rows.first,
          " on is a decode row, of full attention too. cosine: between the two residual streams "
          "behind a layer, or between the logits. shift: |full - sparse| / |full|. kl: KL(full || "
          "sparse) of the next token. top_1: the share of rows whose most likely token is the "
          "same. floor=none and z=2 are the paper's form. ",
          SampleText(sample), " ", kWindowIntervals),
      .paper =
          "its table of residual stream alignment: 126M parameters, C4, the mean over 12 "
          "layers and the logits; top_1 of 1.45B, whose other numbers are 0.9917, 9.94 %, "
          "0.9944 and 0.0379",
      .counted = "rows",
      .keys = {"attention", "at"},
      .columns = {{.name = "cosine", .digits = 4},
                  Percent("shift", 2),
                  {.name = "kl", .unit = "nats", .digits = 4},
                  Percent("top_1", 2)}};
  LineChart chart = {.title = "residual stream, sparse against full attention",
                     .x_label = "layer",
                     .y_label = "cosine"};
  for (size_t i = 0; i < attentions.size(); ++i) {
    const size_t first = table.rows.size();
    AddRows(attentions[i], sums[i], sample.Rows(), table);
    chart.lines.push_back(LineOf(attentions[i], sums[i].size() - 1, [&](size_t layer) {
      return table.rows[first + layer].cells.front();
    }));
  }
  table.figures.push_back(std::move(chart));
  return table;
}

}  // namespace eta
