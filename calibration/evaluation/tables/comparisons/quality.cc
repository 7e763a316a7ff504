// Perplexity on texts and choices of tasks: the model's own forms of attention, and rivals that
// read as much.

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/choice_task.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "calibration/evaluation/tables/comparisons/match_reads.h"
#include "calibration/solvers/sample_split.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr const char* kTasks[] = {"arc_easy", "gsm8k"};

// The paper's perplexities on WikiText-2 at 2048 tokens, and its accuracies on ARC-Easy.
struct PaperQuality {
  const char* label;
  double perplexity;
  double arc;
};
constexpr PaperQuality kPaperQuality[] = {{"full", 19.35, 0.44},    {"H2O", 20.44, 0.44},
                                          {"BigBird", 22.54, 0.44}, {"StreamingLLM", 23.06, 0.44},
                                          {"window", 25.63, 0.44},  {"paper, b=4", 19.39, 0.445},
                                          {"paper", 20.68, 0.44}};

std::optional<double> Paper(const std::string& label, const std::string& text) {
  for (const PaperQuality& row : kPaperQuality) {
    if (label != row.label) continue;
    if (text == "wikitext2") return row.perplexity;
    if (text == "arc_easy") return row.arc;
  }
  return std::nullopt;
}

std::string LabelOf(const std::string& own) {
  if (own == "dynamic+floor=none+z=2") return "paper";
  if (own.find("block_size=4") != std::string::npos) return "paper, b=4";
  return own;
}

// What rivals read as much of as the default, on each text.
struct Match {
  const char* what;
  double (*of)(const AttentionScore&);
};
constexpr Match kMatches[] = {
    {"union", [](const AttentionScore& score) { return score.union_density; }},
    {"bytes", [](const AttentionScore& score) { return score.bytes_read(); }}};
// Shares of all keys or bytes: a rival that comes no nearer is not compared.
constexpr double kMatched = 0.01;
// A way of attending that leaves out less reads everything.
constexpr double kEverything = 0.9995;

// How the default stands against rivals that read as much.
struct Standing {
  bool intervals = false;
  int compared = 0;
  int better = 0;
  int clearly_better = 0;
  int unmatched = 0;
  double furthest = 0.0;  // of those compared, from what the default reads
};

// Scores of arms over the questions of a task, each measured once, on all of them or on few.
class TaskScores {
 public:
  TaskScores(ArmBench& arms, const std::vector<Question>& questions)
      : arms_(arms), all_(questions), few_(KeepSpread(questions, FewOf(questions.size()))) {}

  absl::Status Measure(std::span<const std::string> names, Portion portion) {
    for (const std::string& name : names) {
      if (scores_.contains({name, portion})) continue;
      ASSIGN_OR_RETURN((scores_[{name, portion}]),
                       ScoreChoices(arms_, name, portion == Portion::kAll ? all_ : few_));
    }
    return absl::OkStatus();
  }
  // REQUIRES: measured.
  const ChoiceScore& Of(const std::string& name, Portion portion = Portion::kAll) const {
    return scores_.at({name, portion});
  }

 private:
  ArmBench& arms_;
  const std::vector<Question>& all_;
  std::vector<Question> few_;  // evenly spaced
  std::map<std::pair<std::string, Portion>, ChoiceScore> scores_;
};

class Quality {
 public:
  explicit Quality(TableBench& bench)
      : bench_(bench),
        arms_(bench, bench.Context(2048, 1024)),
        prefill_(arms_.context() / 2),
        own_(OwnArms(bench.config())),
        families_(RivalFamilies()),
        starts_(families_.size()) {}

  absl::StatusOr<Table> Measure() {
    table_ = {.name = "quality",
              .title = "Quality at the default's union of blocks, and at its bytes",
              .method =
                  "Perplexity of the second half of each window, decoded behind a prompt, and its "
                  "ratio to full attention's on the same tokens; intervals over windows, of which "
                  "4 are the least. On each text every rival is run twice: with the budget at "
                  "which it reads the union of keys that the default reads there, and with that "
                  "at which it reads as many bytes: K, V and index, over all K and V. All run on "
                  "the same K and V, gate and floor included; Quest leaves 2 layers dense; H2O and "
                  "BigBird choose single keys, H2O by block whole blocks. Tasks: choice_accuracy "
                  "is the share of questions whose right choice is the likeliest (Wilson's "
                  "interval; one of four is 25 %), perplexity is of the right choices, and all "
                  "rows but the first decode.",
              .paper = "Table 1, 1.45B at 2048 tokens, with its own densities",
              .counted = "tokens or questions",
              .keys = {"text", "attention", "equal", "way"},
              .columns = {{.name = "perplexity", .digits = 3},
                          {.name = "ratio", .digits = 4},
                          Percent("choice_accuracy"),
                          Percent("head"),
                          Percent("union"),
                          Percent("bytes")}};
    const std::vector<BenchText> texts = bench_.Texts();
    const int32_t windows = bench_.Samples(16, 2);
    const bool tasks = bench_.settings().texts.empty();
    total_ = static_cast<int64_t>(texts.size() + (tasks ? std::size(kTasks) : 0));
    table_.settings = {{"context", absl::StrCat(arms_.context())},
                       {"prompt", absl::StrCat(prefill_)},
                       {"windows", absl::StrCat(windows)}};
    // Read before the texts, which take long.
    std::vector<std::vector<Question>> questions;
    if (tasks) RETURN_IF_ERROR(ReadTasks(questions));
    for (const BenchText& text : texts) RETURN_IF_ERROR(Text(text, windows));
    for (size_t i = 0; i < questions.size(); ++i) RETURN_IF_ERROR(Task(kTasks[i], questions[i]));
    for (size_t i = 0; i < std::size(kMatches); ++i) AddFinding(kMatches[i], standings_[i]);
    return table_;
  }

 private:
  absl::Status ReadTasks(std::vector<std::vector<Question>>& questions) const {
    for (const char* task : kTasks) {
      ASSIGN_OR_RETURN(auto read,
                       ReadQuestions(absl::StrCat(bench_.settings().data, "/", task, ".jsonl.xz"),
                                     bench_.tokenizer(), bench_.Questions(300, 16)));
      questions.push_back(std::move(read));
    }
    return absl::OkStatus();
  }

  // `labels` by the table's keys; `full`: null for full attention itself.
  void AddRow(std::vector<std::string> labels, const AttentionScore& score,
              const AttentionScore* full) {
    const auto tokens = static_cast<int64_t>(score.losses.size());
    const std::optional<double> paper = Paper(labels[1], labels[0]);
    table_.rows.push_back(
        {.labels = std::move(labels),
         .cells = {WithPaper(ExpCell(score.loss, tokens), paper),
                   full ? ExpCell(PairedDifference(score, *full), tokens) : TableCell(),
                   TableCell(), PlainCell(score.head_density), PlainCell(score.union_density),
                   PlainCell(score.bytes_read())},
         .n = tokens});
  }

  absl::Status Text(const BenchText& text, int32_t count) {
    ASSIGN_OR_RETURN(const auto windows, bench_.Windows(text, arms_.context(), count));
    ArmScores scores(arms_, windows, prefill_);
    // About what the search takes: every rival three times on all windows, and a few on few.
    const double turns = static_cast<double>(
        windows.size() * (own_.size() + families_.size() * (3 + std::size(kMatches))));
    double turn = 0.0;
    const auto heard = [&] { Progress(std::min(turn++ / turns, 0.99)); };
    RETURN_IF_ERROR(scores.Measure(own_, Portion::kAll, heard));
    const AttentionScore& full = scores.Of("full");
    for (const std::string& name : own_) {
      const AttentionScore& score = scores.Of(name);
      AddRow({text.name, LabelOf(name), "-", name}, score, &score == &full ? nullptr : &full);
    }
    const AttentionScore& own = scores.Of(kDefaultArm);
    ASSIGN_OR_RETURN(const auto matched, MatchRivals(scores, own, heard));
    for (size_t i = 0; i < families_.size(); ++i) {
      for (size_t m = 0; m < std::size(kMatches); ++m) {
        const Match& match = kMatches[m];
        const MatchedArm& arm = matched[i * std::size(kMatches) + m];
        const AttentionScore& score = scores.Of(arm.name);
        const bool met = std::abs(arm.reads - match.of(own)) <= kMatched;
        const std::string equal = absl::StrCat(met ? "" : "nearest ", match.what);
        AddRow({text.name, families_[i].label, equal, arm.name}, score, &full);
        if (met) {
          Compare(text.name, families_[i].label, match, score, own, standings_[m]);
        } else {
          ++standings_[m].unmatched;
        }
      }
    }
    EndColumn();
    return absl::OkStatus();
  }

  // Of each family one arm for each match. Searches begin where they ended on the text before.
  absl::StatusOr<std::vector<MatchedArm>> MatchRivals(ArmScores& scores, const AttentionScore& own,
                                                      const std::function<void()>& heard) {
    std::vector<TriedArms> tried(families_.size());
    std::vector<ReadsWanted> wanted;
    for (size_t i = 0; i < families_.size(); ++i) {
      tried[i].few = std::move(starts_[i]);
      for (const Match& match : kMatches) {
        wanted.push_back({.family = families_[i].name,
                          .reads = match.of(own),
                          .of = [&scores, &match](
                                    const std::string& name,
                                    Portion portion) { return match.of(scores.Of(name, portion)); },
                          .tried = tried[i]});
      }
    }
    ASSIGN_OR_RETURN(auto matched,
                     MatchReads(wanted, [&](std::span<const std::string> names, Portion portion) {
                       return scores.Measure(names, portion, heard);
                     }));
    for (size_t i = 0; i < matched.size(); ++i) {
      const size_t family = i / std::size(kMatches);
      if (i % std::size(kMatches) == 0) starts_[family].clear();
      starts_[family].push_back(matched[i].at);
    }
    return matched;
  }

  // Where a rival that reads as much beats the default.
  void Compare(const std::string& text, const char* label, const Match& match,
               const AttentionScore& score, const AttentionScore& own, Standing& standing) {
    standing.furthest = std::max(standing.furthest, std::abs(match.of(score) - match.of(own)));
    const MeanInterval over = PairedDifference(score, own);
    const bool clear = over.half_width && std::abs(over.mean) > *over.half_width;
    standing.intervals = over.half_width.has_value();
    ++standing.compared;
    if (over.mean > 0.0) {
      ++standing.better;
      standing.clearly_better += clear ? 1 : 0;
    }
    if (over.mean >= 0.0) return;
    table_.findings.push_back(absl::StrFormat(
        "%s on %s at equal %s: perplexity %.3f against the default's %.3f, reading %.1f and %.1f "
        "%% of the bytes%s.",
        label, text, match.what, std::exp(score.loss.mean), std::exp(own.loss.mean),
        100.0 * score.bytes_read(), 100.0 * own.bytes_read(),
        clear                ? ""
        : standing.intervals ? " (within the interval)"
                             : " (no interval)"));
  }

  void AddFinding(const Match& match, const Standing& standing) {
    if (standing.compared + standing.unmatched == 0) return;
    std::string finding = absl::StrFormat(
        "At the default's %s on each text (rivals within %.1f points of it), the default has the "
        "lower perplexity in %d of %d comparisons with rivals%s.",
        match.what, 100.0 * standing.furthest, standing.better, standing.compared,
        standing.intervals
            ? absl::StrFormat(", in %d beyond the 95 %% interval", standing.clearly_better)
            : "");
    if (standing.unmatched > 0) {
      absl::StrAppend(&finding, " In ", standing.unmatched,
                      " more no budget comes within a point of it.");
    }
    table_.findings.push_back(std::move(finding));
  }

  // A task of which every way reads everything compares nothing.
  absl::Status Task(const std::string& task, const std::vector<Question>& questions) {
    TaskScores scores(arms_, questions);
    const int32_t longest = LongestAsked(questions, arms_.context());
    double least = 1.0;
    ASSIGN_OR_RETURN(const bool leaves_out, LeavesOut(longest));
    if (leaves_out) RETURN_IF_ERROR(scores.Measure(own_, Portion::kAll));
    for (size_t i = 0; leaves_out && i < own_.size(); ++i) {
      least = std::min(least, scores.Of(own_[i]).union_density);
    }
    if (least >= kEverything) {
      const char* why = longest == 0 ? ", whose questions are longer than the context"
                                     : ", of which all ways read every key";
      table_.settings.emplace_back("left out", absl::StrCat(task, why));
      EndColumn();
      return absl::OkStatus();
    }
    for (const std::string& name : own_) AddRow({task, LabelOf(name), "-", name}, scores.Of(name));
    const double reads = scores.Of(kDefaultArm).union_density;
    if (reads < kEverything) {  // else rivals would be full attention
      std::vector<TriedArms> tried(families_.size());
      std::vector<ReadsWanted> wanted;
      for (size_t i = 0; i < families_.size(); ++i) {
        wanted.push_back(
            {.family = families_[i].name,
             .reads = reads,
             .of = [&scores](const std::string& name,
                             Portion portion) { return scores.Of(name, portion).union_density; },
             .tried = tried[i]});
      }
      ASSIGN_OR_RETURN(const auto matched,
                       MatchReads(wanted, [&](std::span<const std::string> names, Portion portion) {
                         return scores.Measure(names, portion);
                       }));
      for (size_t i = 0; i < families_.size(); ++i) {
        AddRow({task, families_[i].label, kMatches[0].what, matched[i].name},
               scores.Of(matched[i].name));
      }
    }
    EndColumn();
    return absl::OkStatus();
  }

  // Whether any way of its own could read less than all of questions of up to so many tokens.
  absl::StatusOr<bool> LeavesOut(int32_t longest) {
    for (const std::string& name : own_) {
      ASSIGN_OR_RETURN(const EvaluatedAttention way, arms_.Attention(name));
      if (!ReadsAll(way, longest)) return true;
    }
    return false;
  }

  // `share` of the column at hand, a text or a task.
  void Progress(double share) const {
    constexpr double kSteps = 1000.0;
    bench_.Progress(static_cast<int64_t>(kSteps * (static_cast<double>(done_) + share)),
                    static_cast<int64_t>(kSteps) * total_);
  }
  void EndColumn() {
    ++done_;
    Progress(0.0);
  }

  void AddRow(std::vector<std::string> labels, const ChoiceScore& score) {
    const std::optional<double> paper = Paper(labels[1], labels[0]);
    table_.rows.push_back(
        {.labels = std::move(labels),
         .cells = {PlainCell(std::exp(score.answer_loss)), TableCell(),
                   WithPaper(ShareCell(score.right, score.questions), paper),
                   PlainCell(score.head_density), PlainCell(score.union_density), TableCell()},
         .n = score.questions});
  }

  TableBench& bench_;
  ArmBench arms_;
  int32_t prefill_;
  std::vector<std::string> own_;
  std::vector<RivalFamily> families_;
  std::vector<std::vector<double>> starts_;  // parameters of each family
  Table table_;
  int64_t done_ = 0;  // texts and tasks
  int64_t total_ = 0;
  Standing standings_[std::size(kMatches)];
};

}  // namespace

absl::StatusOr<Table> MeasureQuality(TableBench& bench) {
  return Quality(bench).Measure();
}

}  // namespace eta
