#include "calibration/evaluation/prove/proof_verdict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

constexpr double kPoints = 100.0;
constexpr double kOutside = 0.05;  // of an interval

double MeanOf(std::span<const double> values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> PairedMore(const TaskScores& scores) {
  std::vector<double> more(std::min(scores.full.size(), scores.sparse.size()));
  for (size_t i = 0; i < more.size(); ++i) more[i] = scores.sparse[i] - scores.full[i];
  return more;
}

// The scores of each task, lengths one behind the other.
std::vector<TaskScores> ByTask(std::span<const TaskScores> scores) {
  std::vector<TaskScores> tasks;
  for (const TaskScores& some : scores) {
    if (tasks.empty() || tasks.back().task != some.task) tasks.push_back({.task = some.task});
    tasks.back().full.insert(tasks.back().full.end(), some.full.begin(), some.full.end());
    tasks.back().sparse.insert(tasks.back().sparse.end(), some.sparse.begin(), some.sparse.end());
  }
  return tasks;
}

// A weighted sum of independent means, with the 95 % interval that theirs give it.
class SumOfMeans {
 public:
  // `mean` is of n values, with a 95 % interval or none.
  void Add(double weight, const MeanInterval& mean, double n) {
    mean_ += weight * mean.mean;
    whole_ = whole_ && mean.half_width.has_value();
    if (!mean.half_width) return;
    const double error = weight * *mean.half_width / StudentQuantile(n - 1);
    variance_ += error * error;
    freedom_ += n - 1;
  }
  MeanInterval Interval() const {
    MeanInterval interval = {.mean = mean_, .half_width = std::nullopt};
    if (whole_) interval.half_width = StudentQuantile(freedom_) * std::sqrt(variance_);
    return interval;
  }

 private:
  double mean_ = 0.0;
  double variance_ = 0.0;
  double freedom_ = 0.0;
  bool whole_ = true;
};

// The mean over tasks. Its variance is that of independent questions within each task.
MacroOutcome MacroOf(std::span<const TaskScores> tasks) {
  MacroOutcome macro;
  const auto count = static_cast<double>(tasks.size());
  SumOfMeans sum;
  for (const TaskScores& task : tasks) {
    macro.full += MeanOf(task.full) / count;
    macro.sparse += MeanOf(task.sparse) / count;
    const std::vector<double> more = PairedMore(task);
    sum.Add(1.0 / count, IndependentMeanInterval(more), static_cast<double>(more.size()));
  }
  macro.more = sum.Interval();
  return macro;
}

std::optional<std::pair<double, double>> IntervalOf(const MeanInterval& mean, double factor) {
  if (!mean.half_width) return std::nullopt;
  return std::pair(factor * (mean.mean - *mean.half_width),
                   factor * (mean.mean + *mean.half_width));
}

ProofRule MacroRule(const ProofVerdict& verdict, int64_t tasks, const ProofTolerance& tolerance) {
  ProofRule rule = {.name = "macro",
                    .what = absl::StrCat("RULER, mean of ", tasks, tasks == 1 ? " task" : " tasks"),
                    .unit = "points",
                    .bound = -tolerance.macro_points};
  if (!verdict.macro) return rule;
  rule.value = kPoints * verdict.macro->more.mean;
  rule.interval = IntervalOf(verdict.macro->more, kPoints);
  rule.holds = *rule.value >= rule.bound;
  return rule;
}

// Where the interval of a task ends, or its value, if there is none.
double UpperEnd(const TaskOutcome& task) {
  return task.more.mean + task.more.half_width.value_or(0.0);
}

// By the task whose interval lies lowest.
ProofRule TaskRule(std::span<const TaskOutcome> tasks, const ProofTolerance& tolerance) {
  const TaskOutcome* worst = nullptr;
  for (const TaskOutcome& task : tasks) {
    if (task.counts && (worst == nullptr || UpperEnd(task) < UpperEnd(*worst))) worst = &task;
  }
  ProofRule rule = {.name = "task",
                    .what = absl::StrCat("RULER, the task that fares worst: ", worst->task),
                    .unit = "points",
                    .value = kPoints * worst->more.mean,
                    .interval = IntervalOf(worst->more, kPoints),
                    .bound = -tolerance.task_points};
  rule.holds = kPoints * UpperEnd(*worst) >= rule.bound;
  return rule;
}

// Of all texts together, each by its tokens.
ProofRule PerplexityRule(std::span<const TextScore> texts, const ProofTolerance& tolerance) {
  double tokens = 0.0;
  SumOfMeans sum;
  for (const TextScore& text : texts) tokens += text.tokens;
  for (const TextScore& text : texts) sum.Add(text.tokens / tokens, text.more, text.windows);
  const MeanInterval more = sum.Interval();
  const auto percent = [](double loss) { return 100.0 * std::expm1(loss); };
  ProofRule rule = {.name = "perplexity",
                    .what = absl::StrCat("perplexity over full attention's, ", texts.size(),
                                         texts.size() == 1 ? " text" : " texts"),
                    .unit = "%",
                    .value = percent(more.mean),
                    .bound = tolerance.perplexity_increase,
                    .at_most = true};
  if (more.half_width) {
    rule.interval =
        std::pair(percent(more.mean - *more.half_width), percent(more.mean + *more.half_width));
  }
  rule.holds = *rule.value <= rule.bound;
  return rule;
}

ProofRule SpeedRule(std::span<const SpeedScore> speeds, const ProofTolerance& tolerance) {
  const SpeedScore& slowest = *std::ranges::min_element(speeds, {}, &SpeedScore::ratio);
  return {.name = "speed",
          .what = absl::StrCat("decode speed over full attention's, slowest at ", slowest.context,
                               " tokens of context"),
          .unit = "x",
          .value = slowest.ratio,
          .interval = std::nullopt,
          .bound = tolerance.speed,
          .holds = slowest.ratio >= tolerance.speed};
}

// By length, over the tasks that count.
std::vector<LengthOutcome> ByLength(std::span<const TaskScores> scores,
                                    const std::map<std::string, bool>& counts) {
  std::map<int32_t, std::vector<TaskScores>> lengths;
  for (const TaskScores& some : scores) {
    if (counts.at(some.task)) lengths[some.length].push_back(some);
  }
  std::vector<LengthOutcome> outcomes;
  for (const auto& [length, tasks] : lengths) outcomes.push_back({length, MacroOf(tasks)});
  return outcomes;
}

}  // namespace

bool ProofVerdict::holds() const {
  return !rules.empty() && std::ranges::all_of(rules, &ProofRule::holds);
}

ProofVerdict JudgeProof(const ProofScores& scores, const ProofTolerance& tolerance) {
  ProofVerdict verdict;
  std::vector<TaskScores> counted;
  std::map<std::string, bool> counts;
  const std::vector<TaskScores> tasks = ByTask(scores.ruler);
  for (const TaskScores& task : tasks) {
    counts[task.task] = MeanOf(task.full) >= kLeastFullScore;
    if (counts[task.task]) counted.push_back(task);
  }
  const double outside = kOutside / static_cast<double>(std::max<size_t>(1, counted.size()));
  for (const TaskScores& task : tasks) {
    verdict.tasks.push_back({.task = task.task,
                             .questions = std::ssize(task.full),
                             .full = MeanOf(task.full),
                             .sparse = MeanOf(task.sparse),
                             .more = IndependentMeanInterval(PairedMore(task), outside),
                             .counts = counts[task.task]});
  }
  verdict.lengths = ByLength(scores.ruler, counts);
  if (!counted.empty()) verdict.macro = MacroOf(counted);
  verdict.rules.push_back(MacroRule(verdict, std::ssize(counted), tolerance));
  if (!counted.empty()) verdict.rules.push_back(TaskRule(verdict.tasks, tolerance));
  if (!scores.texts.empty()) verdict.rules.push_back(PerplexityRule(scores.texts, tolerance));
  if (!scores.speeds.empty()) verdict.rules.push_back(SpeedRule(scores.speeds, tolerance));
  return verdict;
}

}  // namespace eta
