#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/prove/greedy_pair.h"
#include "calibration/evaluation/prove/proof_parts.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr const char* kRulerPart = "RULER";
constexpr int32_t kUsualTokens = 128;  // of an answer, at most

class Ruler : public ProofPart {
 public:
  Ruler(const ProofBench& bench, QuestionSource questions)
      : bench_(bench),
        questions_(std::move(questions)),
        pair_(bench.runner, bench.bench.rivals(), bench.bench.tokenizer(), bench.ways) {
    counts_.fill(true);
    SetLeft(bench.plan.QuestionsOfEach(kRulerTasks));
  }

  absl::Status Measure(ProofScores& scores) override {
    const ProofPlan& plan = bench_.plan;
    RETURN_IF_ERROR(Ask(plan.first_questions));
    for (int task = 0; task < kRulerTasks; ++task) {
      counts_[static_cast<size_t>(task)] = FullScore(task) >= kLeastFullScore;
    }
    const auto tasks = static_cast<size_t>(std::ranges::count(counts_, true));
    const int32_t of_each = plan.QuestionsOfEach(tasks);
    SetLeft(of_each);
    RETURN_IF_ERROR(Ask(of_each));
    for (int task = 0; task < kRulerTasks; ++task) {
      const int32_t asked =
          counts_[static_cast<size_t>(task)] ? of_each : bench_.plan.first_questions;
      for (const int32_t length : plan.lengths) scores.ruler.push_back(Scores(task, length, asked));
    }
    return absl::OkStatus();
  }

 private:
  static std::string UnitName(int task, int32_t length, int32_t number) {
    return absl::StrCat("ruler/", std::string(RulerTaskName(task)), "/", length, "/", number);
  }
  const ProofUnit* Find(int task, int32_t length, int32_t number) const {
    return bench_.log.Find(UnitName(task, length, number), {"full", "sparse"});
  }
  static double Work(int32_t length) { return length + 2.0 * kUsualTokens * ProofClock::kStep; }

  // Of the tasks that count, so many questions at each length.
  absl::Status Ask(int32_t of_each) {
    for (const int32_t length : bench_.plan.lengths) {
      for (int task = 0; task < kRulerTasks; ++task) {
        if (!counts_[static_cast<size_t>(task)]) continue;
        for (int32_t number = 0; number < of_each; ++number) {
          if (Find(task, length, number) != nullptr) continue;
          RETURN_IF_ERROR(AskOne(task, length, number));
          bench_.clock.Took(kRulerPart, Work(length));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status AskOne(int task, int32_t length, int32_t number) {
    ASSIGN_OR_RETURN(const RulerQuestion question, questions_(task, length, number));
    pair_.Begin(question.prompt, question.max_tokens);
    const auto text = [&](std::span<const int32_t> tokens) {
      return bench_.bench.tokenizer().Decode(tokens);
    };
    // What is said stays said: a whole answer is not lost by going on.
    const auto unsaid = [&](std::span<const int32_t> tokens) {
      return ScoreRulerOutput(question, text(tokens)) < 1.0;
    };
    std::array<std::string, 2> outputs;
    for (size_t way = 0; way < outputs.size(); ++way) {
      ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, pair_.Continue(way, unsaid));
      outputs[way] = text(tokens);
    }
    ProofUnit unit;
    unit.numbers["full"] = ScoreRulerOutput(question, outputs[0]);
    unit.numbers["sparse"] = ScoreRulerOutput(question, outputs[1]);
    if (unit.numbers["full"] != unit.numbers["sparse"]) {
      unit.texts["full_output"] = outputs[0];
      unit.texts["sparse_output"] = outputs[1];
    }
    return bench_.log.Add(UnitName(task, length, number), std::move(unit));
  }

  // Over the first questions of all lengths.
  double FullScore(int task) const {
    double sum = 0.0;
    double asked = 0.0;
    for (const int32_t length : bench_.plan.lengths) {
      const TaskScores first = Scores(task, length, bench_.plan.first_questions);
      sum += std::accumulate(first.full.begin(), first.full.end(), 0.0);
      asked += static_cast<double>(first.full.size());
    }
    return asked > 0.0 ? sum / asked : 0.0;
  }

  TaskScores Scores(int task, int32_t length, int32_t asked) const {
    TaskScores scores = {.task = std::string(RulerTaskName(task)), .length = length};
    for (int32_t number = 0; number < asked; ++number) {
      const ProofUnit* unit = Find(task, length, number);
      if (unit == nullptr) continue;
      scores.full.push_back(unit->numbers.at("full"));
      scores.sparse.push_back(unit->numbers.at("sparse"));
    }
    return scores;
  }

  void SetLeft(int32_t of_each) {
    double work = 0.0;
    for (const int32_t length : bench_.plan.lengths) {
      for (int task = 0; task < kRulerTasks; ++task) {
        if (!counts_[static_cast<size_t>(task)]) continue;
        for (int32_t number = 0; number < of_each; ++number) {
          if (Find(task, length, number) == nullptr) work += Work(length);
        }
      }
    }
    bench_.clock.SetLeft(kRulerPart, work);
  }

  const ProofBench bench_;
  const QuestionSource questions_;
  GreedyPair pair_;
  std::array<bool, kRulerTasks> counts_;  // whether full attention can do the task
};

}  // namespace

std::unique_ptr<ProofPart> RulerPart(const ProofBench& bench, QuestionSource questions) {
  return std::make_unique<Ruler>(bench, std::move(questions));
}

}  // namespace eta
