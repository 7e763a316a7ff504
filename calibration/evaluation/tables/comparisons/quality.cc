// Perplexity on texts and choices of tasks: the model's own forms of attention, and rivals that
// read as much.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/choice_task.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
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
    const size_t columns = texts.size() + (tasks ? std::size(kTasks) : 0);
    total_ = static_cast<int64_t>((own_.size() + families_.size()) * columns);
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
    ASSIGN_OR_RETURN(const AttentionScore* const full, scores.Of("full"));
    for (const std::string& name : own_) {
      ASSIGN_OR_RETURN(const AttentionScore* const score, scores.Of(name));
      AddRow({text.name, LabelOf(name), "-", name}, *score, score == full ? nullptr : full);
      bench_.Progress(++done_, total_);
    }
    ASSIGN_OR_RETURN(const AttentionScore* const own, scores.Of(kDefaultArm));
    for (size_t i = 0; i < families_.size(); ++i) {
      // It begins where it ended on the text before.
      std::vector<double> tried = std::exchange(starts_[i], {});
      for (size_t m = 0; m < std::size(kMatches); ++m) {
        const Match& match = kMatches[m];
        const ArmReads reads = [&](const std::string& name) -> absl::StatusOr<double> {
          ASSIGN_OR_RETURN(const AttentionScore* const score, scores.Of(name));
          return match.of(*score);
        };
        ASSIGN_OR_RETURN(const MatchedArm arm,
                         MatchReads(families_[i].name, match.of(*own), reads, tried));
        ASSIGN_OR_RETURN(const AttentionScore* const score, scores.Of(arm.name));
        const bool met = std::abs(arm.reads - match.of(*own)) <= kMatched;
        const std::string equal = absl::StrCat(met ? "" : "nearest ", match.what);
        AddRow({text.name, families_[i].label, equal, arm.name}, *score, full);
        if (met) {
          Compare(text.name, families_[i].label, match, *score, *own, standings_[m]);
        } else {
          ++standings_[m].unmatched;
        }
        if (m == 0) starts_[i] = {arm.at};
      }
      bench_.Progress(++done_, total_);
    }
    return absl::OkStatus();
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
    std::map<std::string, ChoiceScore> scores;
    const ArmReads reads = [&](const std::string& name) -> absl::StatusOr<double> {
      if (!scores.contains(name)) {
        ASSIGN_OR_RETURN(scores[name], ScoreChoices(arms_, name, questions));
      }
      return scores[name].union_density;
    };
    double least = 1.0;
    for (const std::string& name : own_) {
      ASSIGN_OR_RETURN(const double got, reads(name));
      least = std::min(least, got);
      bench_.Progress(++done_, total_);
    }
    const bool none = scores["full"].questions == 0;
    if (none || least >= kEverything) {
      const char* why = none ? ", whose questions are longer than the context"
                             : ", of which all ways read every key";
      table_.settings.emplace_back("left out", absl::StrCat(task, why));
      done_ += std::ssize(families_);
      return absl::OkStatus();
    }
    for (const std::string& name : own_) AddRow({task, LabelOf(name), "-", name}, scores[name]);
    const double wanted = scores[kDefaultArm].union_density;
    for (const RivalFamily& family : families_) {
      bench_.Progress(++done_, total_);
      if (wanted >= kEverything) continue;  // they would be full attention
      std::vector<double> tried;
      ASSIGN_OR_RETURN(const MatchedArm arm, MatchReads(family.name, wanted, reads, tried));
      AddRow({task, family.label, kMatches[0].what, arm.name}, scores[arm.name]);
    }
    return absl::OkStatus();
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
  std::vector<std::vector<double>> starts_;  // of each family
  Table table_;
  int64_t done_ = 0;
  int64_t total_ = 0;
  Standing standings_[std::size(kMatches)];
};

}  // namespace

absl::StatusOr<Table> MeasureQuality(TableBench& bench) {
  return Quality(bench).Measure();
}

}  // namespace eta
