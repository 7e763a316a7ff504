#include "calibration/evaluation/prove/proof_tables.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/solvers/jackknife.h"

namespace eta {
namespace {

TableColumn Points(std::string name) {
  return {.name = std::move(name), .unit = "points", .digits = 1, .percent = true};
}

TableCell MeanCell(const MeanInterval& mean) {
  TableCell cell = PlainCell(mean.mean);
  if (mean.half_width) {
    cell.interval = std::pair(mean.mean - *mean.half_width, mean.mean + *mean.half_width);
  }
  return cell;
}

TableCell EstimateCell(const Estimate& estimate) {
  TableCell cell = {.value = estimate.value};
  if (estimate.value && estimate.half_width) {
    cell.interval =
        std::pair(*estimate.value - *estimate.half_width, *estimate.value + *estimate.half_width);
  }
  return cell;
}

Table TaskTable(const ProofVerdict& verdict, const ProofPlan& plan) {
  Table table = {
      .name = "ruler",
      .title = "Retrieval by task",
      .method = absl::StrFormat(
          "RULER's tasks: greedy answers to the same questions, all lengths together. A score is "
          "the share of what is asked for that the answer holds; of qa whether it holds one of the "
          "answers. Prompts are computed as a server computes them. A task counts if full "
          "attention's score is %.0f %% at least. Differences are paired; their intervals hold at "
          "95 %% for all tasks that count together (Bonferroni). Of each task and length %d "
          "questions are asked, and of tasks that count %s.",
          100.0 * kLeastFullScore, plan.first_questions,
          plan.questions == 0
              ? "no more"
              : absl::StrCat("so many that there are ", plan.questions,
                             " in all: a mean loss of 2 points then shows, where one question in "
                             "ten is answered otherwise")),
      .counted = "questions",
      .keys = {"task", "counts"},
      .columns = {Percent("full"), Percent("sparse"), Points("difference")}};
  for (const TaskOutcome& task : verdict.tasks) {
    table.rows.push_back(
        {.labels = {task.task, task.counts ? "yes" : "no"},
         .cells = {PlainCell(task.full), PlainCell(task.sparse), MeanCell(task.more)},
         .n = task.questions});
  }
  return table;
}

Table LengthTable(const ProofVerdict& verdict) {
  Table table = {.name = "lengths",
                 .title = "Retrieval by length",
                 .method =
                     "The mean of the tasks that count; paired differences with their 95 % "
                     "intervals.",
                 .keys = {"length"},
                 .columns = {Percent("full"), Percent("sparse"), Points("difference")}};
  LineChart chart = {.title = "Retrieval by length, mean of the tasks that count",
                     .x_label = "tokens",
                     .lines = {{.name = "full", .points = {}, .dots = true},
                               {.name = "sparse", .points = {}, .dots = true}},
                     .log_x = true,
                     .from_zero = true};
  for (const auto& [length, macro] : verdict.lengths) {
    table.rows.push_back(
        {.labels = {absl::StrCat(length)},
         .cells = {PlainCell(macro.full), PlainCell(macro.sparse), MeanCell(macro.more)}});
    const auto x = static_cast<double>(length);
    const double half = macro.more.half_width.value_or(0.0);
    chart.lines[0].points.push_back({.x = x, .y = macro.full});
    chart.lines[1].points.push_back(
        {.x = x, .y = macro.sparse, .low = macro.sparse - half, .high = macro.sparse + half});
  }
  table.figures.push_back(std::move(chart));
  return table;
}

Table PerplexityProof(std::span<const TextScore> texts) {
  Table table = {
      .name = "perplexity",
      .title = "Perplexity and divergence",
      .method =
          "The second half of each window, decoded behind a prompt; the ratio to full "
          "attention's perplexity on the same tokens, with its 95 % interval over windows (fewer "
          "than 4 have none). KL: how far the next token's distribution is from full "
          "attention's. Bytes: K, V and index that were read, over all K and V.",
      .counted = "tokens",
      .keys = {"text"},
      .columns = {{.name = "window", .unit = "tokens", .digits = 0},
                  {.name = "full"},
                  {.name = "ratio", .digits = 4},
                  {.name = "kl", .unit = "1000 nats", .digits = 2},
                  Percent("full_top_1"),
                  Percent("top_1"),
                  Percent("union"),
                  Percent("bytes")}};
  for (const TextScore& text : texts) {
    table.rows.push_back(
        {.labels = {text.text},
         .cells = {PlainCell(text.context), PlainCell(std::exp(text.loss)), ExpCell(text.more, 0),
                   PlainCell(1000.0 * text.kl), PlainCell(text.full_top_1), PlainCell(text.top_1),
                   PlainCell(text.union_density), PlainCell(text.bytes_read)},
         .n = static_cast<int64_t>(text.tokens)});
  }
  return table;
}

// The share of the prompts whose continuations still agree, by tokens.
LineChart Agreement(std::span<const TrafficScore> traffic) {
  FigureLine line = {.name = "agree", .points = {}, .dots = false};
  double longest = 1.0;
  for (const TrafficScore& prompt : traffic) longest = std::max(longest, prompt.tokens);
  longest = std::min(longest, 4096.0);
  for (double token = 1.0; token <= longest; token += 1.0) {
    const auto agree = std::ranges::count_if(traffic, [token](const TrafficScore& prompt) {
      return prompt.agreed >= std::min(token, prompt.tokens);
    });
    line.points.push_back(
        {.x = token, .y = static_cast<double>(agree) / static_cast<double>(traffic.size())});
  }
  return {.title = "Prompts whose greedy continuations still agree",
          .x_label = "tokens",
          .lines = {std::move(line)},
          .from_zero = true};
}

// The first token at which continuations part; nothing where half of them never do.
std::optional<double> MedianParting(std::span<const TrafficScore> traffic) {
  std::vector<double> places;
  for (const TrafficScore& prompt : traffic) {
    places.push_back(prompt.agreed < prompt.tokens ? prompt.agreed + 1.0 : INFINITY);
  }
  const auto middle = places.begin() + static_cast<std::ptrdiff_t>((places.size() - 1) / 2);
  std::ranges::nth_element(places, middle);
  return std::isfinite(*middle) ? std::optional(*middle) : std::nullopt;
}

Table TrafficTable(const ProofScores& scores, const ProofPlan& plan) {
  const std::span<const TrafficScore> traffic = scores.traffic;
  std::vector<std::vector<double>> sums;
  int64_t never = 0;
  for (const TrafficScore& prompt : traffic) {
    sums.push_back({1000.0 * prompt.kl, prompt.same, prompt.compared});
    never += prompt.agreed < prompt.tokens ? 0 : 1;
  }
  Table table = {
      .name = "traffic",
      .title = "Your own prompts",
      .method = absl::StrCat(
          "Full attention goes on greedily, up to end of text or ", plan.continuation,
          " tokens. KL and top-1: over these tokens, those before given, sparse against full "
          "attention; 95 % intervals by prompt. Parting: the first token at which the two greedy "
          "continuations differ, the median over prompts, unless half of them never part."),
      .counted = "prompts",
      .keys = {"prompts"},
      .columns = {{.name = "kl", .unit = "1000 nats", .digits = 2},
                  Percent("top_1"),
                  {.name = "parting", .unit = "token", .digits = 0},
                  Percent("never_part")}};
  TableRow row = {.labels = {"all"}, .cells = {}, .n = std::ssize(traffic)};
  row.cells.push_back(EstimateCell(JackknifeRatio(sums, 0, 2)));
  row.cells.push_back(EstimateCell(JackknifeRatio(sums, 1, 2)));
  row.cells.push_back({.value = MedianParting(traffic)});
  row.cells.push_back(ShareCell(never, std::ssize(traffic)));
  table.rows.push_back(std::move(row));
  if (scores.long_prompts > 0) {
    table.findings.push_back(absl::StrCat(scores.long_prompts,
                                          " prompts are too long for the model with ",
                                          plan.continuation, " more tokens, and left out."));
  }
  table.figures.push_back(Agreement(traffic));
  return table;
}

Table SpeedTable(std::span<const SpeedScore> speeds, const ProofPlan& plan) {
  Table table = {
      .name = "speed",
      .title = "Speed at short contexts",
      .method = absl::StrCat("One stream, where there is little to leave out: ", plan.speed_steps,
                             " decode steps by each way in ", plan.speed_turns,
                             " turns; medians. Times: full attention's time over "
                             "sparse's, the median of the turns."),
      .keys = {"context"},
      .columns = {{.name = "full", .unit = "ms a step"},
                  {.name = "sparse", .unit = "ms a step"},
                  {.name = "times"}}};
  for (const SpeedScore& speed : speeds) {
    table.rows.push_back(
        {.labels = {absl::StrCat(speed.context)},
         .cells = {PlainCell(speed.full_ms), PlainCell(speed.sparse_ms), PlainCell(speed.ratio)}});
  }
  return table;
}

}  // namespace

std::vector<Table> ProofTables(const ProofScores& scores, const ProofVerdict& verdict,
                               const ProofPlan& plan) {
  std::vector<Table> tables;
  if (!verdict.lengths.empty()) tables.push_back(LengthTable(verdict));
  if (!verdict.tasks.empty()) tables.push_back(TaskTable(verdict, plan));
  if (!scores.texts.empty()) tables.push_back(PerplexityProof(scores.texts));
  if (!scores.traffic.empty()) tables.push_back(TrafficTable(scores, plan));
  if (!scores.speeds.empty()) tables.push_back(SpeedTable(scores.speeds, plan));
  return tables;
}

}  // namespace eta
