// Retrieval of four kinds by length: one number, one of several, both of one name, and the number
// of a variable that another one is set to (Hsieh et al., "RULER", COLM 2024).

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/needles/needle_evaluation.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "calibration/needles/retrieval_trials.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr const char* kKinds[kRetrievalKinds] = {"single", "multi_key", "multi_value", "two_hop"};
constexpr int32_t kLengths[] = {2048, 4096, 8192, 16384};
// The last of these rows in front of the question decode, to be compared with those behind it.
constexpr int32_t kRoutineRows = 128;
// H2O's sums over all rows of long prompts would take the host longer than all else takes.
constexpr int32_t kWatchedRows = 2048;

struct RulerArm {
  const char* label;
  std::string name;
  // The paper's shares by kind, at 2048 and at 4096 tokens; negative: none.
  double paper[2][kRetrievalKinds];
};
constexpr double kNone = -1.0;

std::vector<RulerArm> Arms(TableBench& bench) {
  std::vector<RulerArm> arms = {
      {"full", "full", {{.870, .769, .889, .870}, {.667, .657, .565, .333}}},
      {"default", kDefaultArm, {{kNone, kNone, kNone, kNone}, {kNone, kNone, kNone, kNone}}}};
  if (bench.config().gate == Gate::kSilu) {
    arms.push_back({"paper, b=64, a=0.4",
                    "dynamic+floor=none+z=1.5+offset=0.4",
                    {{.870, .880, .889, .778}, {.667, .657, .556, .241}}});
    arms.push_back({"paper, b=64, a=0",
                    "dynamic+floor=none+z=1.5",
                    {{.870, .769, .787, .676}, {.565, .556, .509, .231}}});
    if (!bench.quick()) {
      arms.push_back({"paper, b=4, a=0.4",
                      "dynamic+floor=none+z=1+offset=0.4+block_size=4+pinned_blocks=0",
                      {{.880, .870, .889, .880}, {.667, .657, .565, .333}}});
    }
  }
  // Shares of a head: what its group reads stands in the columns.
  arms.push_back(
      {"Quest, 38 % a head", "quest:0.38", {{.556, .231, .120, .130}, {.241, .130, .019, .009}}});
  arms.push_back(
      {"H2O, 38 % a head", "h2o:0.125:0.291", {{.250, .120, .009, .009}, {.037, .019, .009, .0}}});
  arms.push_back({"StreamingLLM, 38 %",
                  "streaming:0.38",
                  {{kNone, kNone, kNone, kNone}, {kNone, kNone, kNone, kNone}}});
  return arms;
}

class Ruler {
 public:
  explicit Ruler(TableBench& bench)
      : bench_(bench), arms_(Arms(bench)), trials_(bench.Samples(27, 3)) {}

  absl::StatusOr<Table> Measure() {
    Table table = {
        .name = "ruler",
        .title = "Retrieval by kind and length",
        .method = absl::StrCat(
            "Shares of trials in which every token of the answer was the likeliest, those before "
            "it given (Wilson's intervals). All but the last ",
            kRoutineRows, " rows in front of the question are a prompt. H2O adds up at most ",
            kWatchedRows,
            " of its rows, evenly spread. Routine: the rows in front of the question. Query: the "
            "rows from it on."),
        .paper = "RULER suite, 1.45B",
        .counted = "trials of each kind",
        .keys = {"length", "attention"},
        .columns = Columns()};
    std::vector<int32_t> lengths;
    for (const int32_t length : kLengths) {
      if (length <= LongestLength()) lengths.push_back(length);
    }
    if (lengths.empty()) lengths.push_back(LongestLength());
    ASSIGN_OR_RETURN(const auto text, Text());
    for (const int32_t length : lengths) {
      tokens_ += int64_t{length} * kRetrievalKinds * trials_ * static_cast<int64_t>(arms_.size());
    }
    LineChart chart = {.title = "Retrieval by length, mean of the kinds",
                       .x_label = "tokens",
                       .lines = {},
                       .log_x = true,
                       .from_zero = true};
    for (const RulerArm& arm : arms_) {
      chart.lines.push_back({.name = arm.label, .points = {}, .dots = true});
    }
    for (const int32_t length : lengths) RETURN_IF_ERROR(Length(length, text, table, chart));
    for (size_t i = 1; i < arms_.size(); ++i) {
      table.findings.push_back(absl::StrFormat(
          "Retrieval of %s: %d of %d trials, full attention %d; union %.0f to %.0f %% by length.",
          arms_[i].label, hits_[i], asked_, hits_[0], 100.0 * unions_[i].first,
          100.0 * unions_[i].second));
    }
    table.settings = {{"trials", absl::StrCat(trials_)},
                      {"seed", absl::StrCat(bench_.settings().seed)}};
    table.figures.push_back(std::move(chart));
    return table;
  }

 private:
  static std::vector<TableColumn> Columns() {
    std::vector<TableColumn> columns;
    for (const char* kind : kKinds) {
      columns.push_back(Percent(kind));
    }
    for (const char* name :
         {"mean", "routine_head", "query_head", "routine_union", "query_union"}) {
      columns.push_back(Percent(name));
    }
    return columns;
  }

  int32_t LongestLength() const { return bench_.Context(16384, 2048); }

  absl::StatusOr<std::vector<int32_t>> Text() const {
    ASSIGN_OR_RETURN(const auto windows, bench_.Windows(bench_.Texts().front(), 512, 0));
    std::vector<int32_t> text;
    for (const std::vector<int32_t>& window : windows) {
      text.insert(text.end(), window.begin(), window.end() - 1);
    }
    return text;
  }

  absl::Status Length(int32_t length, const std::vector<int32_t>& text, Table& table,
                      LineChart& chart) {
    ArmBench arms(bench_, length);
    ASSIGN_OR_RETURN(const auto scores, Scores(arms, RetrievalTrials(text, bench_.tokenizer(),
                                                                     static_cast<size_t>(length),
                                                                     bench_.settings().seed)));
    for (size_t i = 0; i < arms_.size(); ++i) {
      const NeedleScore& score = scores[i];
      TableRow row = {.labels = {absl::StrCat(length), arms_[i].label}, .cells = {}, .n = trials_};
      for (int kind = 0; kind < kRetrievalKinds; ++kind) {
        const auto first = score.hits.begin() + int64_t{kind} * trials_;
        const double paper =
            length <= 4096 && length >= 2048 ? arms_[i].paper[length / 4096][kind] : kNone;
        row.cells.push_back(WithPaper(ShareCell(std::count(first, first + trials_, true), trials_),
                                      paper >= 0.0 ? std::optional(paper) : std::nullopt));
      }
      const int64_t found = score.found();
      hits_[i] += found;
      unions_[i] = {std::min(unions_[i].first, score.union_density),
                    std::max(unions_[i].second, score.union_density)};
      const TableCell mean = ShareCell(found, int64_t{trials_} * kRetrievalKinds);
      row.cells.push_back(mean);
      for (const double density :
           {score.routine.head, score.query.head, score.routine.join, score.query.join}) {
        row.cells.push_back(PlainCell(density));
      }
      chart.lines[i].points.push_back({.x = static_cast<double>(length),
                                       .y = mean.value.value_or(0.0),
                                       .low = mean.interval ? mean.interval->first : 0.0,
                                       .high = mean.interval ? mean.interval->second : 0.0});
      table.rows.push_back(std::move(row));
    }
    asked_ += int64_t{trials_} * kRetrievalKinds;
    return absl::OkStatus();
  }

  // One score per arm, over the trials of every kind, kind by kind.
  absl::StatusOr<std::vector<NeedleScore>> Scores(ArmBench& arms, const RetrievalTrials& trials) {
    std::vector<EvaluatedAttention> attentions;
    for (const RulerArm& arm : arms_) {
      ASSIGN_OR_RETURN(EvaluatedAttention attention, arms.Attention(arm.name));
      attentions.push_back(std::move(attention));
    }
    std::vector<NeedleWindow> windows;
    int32_t prefill = arms.context();
    for (int kind = 0; kind < kRetrievalKinds; ++kind) {
      for (int32_t i = 0; i < trials_; ++i) {
        ASSIGN_OR_RETURN(NeedleWindow window, trials.Make(static_cast<RetrievalKind>(kind), i));
        prefill = std::min(prefill, std::max(1, window.question - kRoutineRows));
        windows.push_back(std::move(window));
      }
    }
    const auto progress = [&](int64_t done, int64_t total) {
      bench_.Progress(tokens_done_ + done * arms.context(), tokens_);
      if (done == total) tokens_done_ += total * arms.context();
    };
    return EvaluateNeedles(arms.runners().Source(), windows, attentions,
                           {.prefill = prefill,
                            .special_ids = bench_.tokenizer().special_ids(),
                            .rivals = &bench_.rivals(),
                            .watched_rows = kWatchedRows,
                            .progress = progress});
  }

  TableBench& bench_;
  std::vector<RulerArm> arms_;
  int32_t trials_;
  std::vector<int64_t> hits_ = std::vector<int64_t>(arms_.size());  // over lengths and kinds
  // The least and the largest union density over lengths.
  std::vector<std::pair<double, double>> unions_ =
      std::vector<std::pair<double, double>>(arms_.size(), {1.0, 0.0});
  int64_t asked_ = 0;
  int64_t tokens_ = 0;  // of all trials and arms
  int64_t tokens_done_ = 0;
};

}  // namespace

absl::StatusOr<Table> MeasureRuler(TableBench& bench) {
  return Ruler(bench).Measure();
}

}  // namespace eta
