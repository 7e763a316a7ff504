// Perplexity on texts and accuracy on tasks: the model's own forms of attention, and rivals that
// read as much.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/choice_task.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

struct QualityArm {
  std::string label;
  std::string name;
};

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

class Quality {
 public:
  explicit Quality(TableBench& bench)
      : bench_(bench), arms_(bench, bench.Context(2048, 1024)), prefill_(arms_.context() / 2) {}

  absl::StatusOr<Table> Measure() {
    table_ = {.name = "quality",
              .title = "Quality at equal reads",
              .method =
                  "Perplexity of the second half of each window, decoded behind a prompt, and its "
                  "ratio to full attention's on the same tokens; intervals by blocks of 256 "
                  "tokens. Tasks: the share of questions whose right answer has the largest "
                  "log-probability (Wilson's interval), all rows but the first decoded. Rivals "
                  "read the union of blocks that the default reads, found on windows of the first "
                  "text; all run on the same K and V, gate and floor included. Bytes: K, V and "
                  "index, over all K and V.",
              .paper = "Table 1, 1.45B at 2048 tokens, with its own densities",
              .counted = "tokens or questions",
              .keys = {"text", "attention"},
              .columns = {{.name = "perplexity", .digits = 3},
                          {.name = "ratio", .digits = 4},
                          Percent("accuracy"),
                          Percent("head"),
                          Percent("union"),
                          Percent("bytes")}};
    const std::vector<BenchText> texts = bench_.Texts();
    const int32_t windows = bench_.Samples(16, 2);
    const bool tasks = bench_.settings().texts.empty();
    const std::vector<RivalFamily> families = RivalFamilies();
    const size_t columns = texts.size() + (tasks ? std::size(kTasks) : 0);
    // Finding a rival's budget counts like measuring it once.
    total_ = static_cast<int64_t>(families.size() +
                                  (OwnArms(bench_.config()).size() + families.size()) * columns);
    RETURN_IF_ERROR(ChooseArms(texts.front(), families));
    for (const BenchText& text : texts) RETURN_IF_ERROR(Text(text, windows));
    if (tasks) {
      for (const char* task : kTasks) RETURN_IF_ERROR(Task(task));
    }
    if (compared_ > 0) {
      table_.findings.push_back(absl::StrFormat(
          "Reading one union of blocks, the default has the lower perplexity in %d of %d "
          "comparisons with rivals, in %d beyond the 95 %% interval.",
          better_, compared_, clearly_better_));
    }
    table_.settings = {{"context", absl::StrCat(arms_.context())},
                       {"prompt", absl::StrCat(prefill_)},
                       {"windows", absl::StrCat(windows)}};
    for (const QualityArm& arm : arms_list_) {
      if (arm.label != arm.name) table_.settings.emplace_back(arm.label, arm.name);
    }
    return table_;
  }

 private:
  // Matching takes a window; the numbers are others'.
  absl::Status ChooseArms(const BenchText& text, const std::vector<RivalFamily>& families) {
    for (const std::string& name : OwnArms(bench_.config())) {
      arms_list_.push_back({LabelOf(name), name});
    }
    ASSIGN_OR_RETURN(const auto windows, bench_.Windows(text, arms_.context(), 1));
    ASSIGN_OR_RETURN(const auto own, arms_.Score(kDefaultArm, windows, prefill_));
    for (const RivalFamily& family : families) {
      ASSIGN_OR_RETURN(const auto matched, MatchUnion(arms_, family.name, 0.0, 0.9999,
                                                      own.union_density, windows, prefill_));
      arms_list_.push_back({family.label, matched.name});
      bench_.Progress(++done_, total_);
    }
    return absl::OkStatus();
  }

  absl::Status Text(const BenchText& text, int32_t count) {
    ASSIGN_OR_RETURN(const auto windows, bench_.Windows(text, arms_.context(), count));
    std::vector<AttentionScore> scores;
    for (const QualityArm& arm : arms_list_) {
      ASSIGN_OR_RETURN(auto score, arms_.Score(arm.name, windows, prefill_));
      scores.push_back(std::move(score));
      bench_.Progress(++done_, total_);
    }
    for (size_t i = 0; i < scores.size(); ++i) {
      const AttentionScore& score = scores[i];
      const auto tokens = static_cast<int64_t>(score.losses.size());
      TableCell ratio = ExpCell(PairedDifference(score.losses, scores.front().losses), tokens);
      table_.rows.push_back(
          {.labels = {text.name, arms_list_[i].label},
           .cells = {WithPaper(ExpCell(score.loss, tokens), Paper(arms_list_[i].label, text.name)),
                     i == 0 ? TableCell() : ratio, TableCell(), PlainCell(score.head_density),
                     PlainCell(score.union_density), PlainCell(score.bytes_read())},
           .n = tokens});
    }
    Compare(text.name, scores);
    return absl::OkStatus();
  }

  // Where a rival that reads as much beats the default.
  void Compare(const std::string& text, const std::vector<AttentionScore>& scores) {
    const auto own = static_cast<size_t>(
        std::ranges::find(arms_list_, std::string(kDefaultArm), &QualityArm::name) -
        arms_list_.begin());
    for (size_t i = OwnArms(bench_.config()).size(); i < scores.size(); ++i) {
      const MeanInterval over = PairedDifference(scores[i].losses, scores[own].losses);
      const bool clear = over.half_width && std::abs(over.mean) > *over.half_width;
      ++compared_;
      if (over.mean >= 0.0) {
        ++better_;
        clearly_better_ += clear ? 1 : 0;
        continue;
      }
      table_.findings.push_back(absl::StrFormat(
          "%s on %s: perplexity %.3f against the default's %.3f, reading %.1f and %.1f %% of the "
          "bytes%s.",
          arms_list_[i].label, text, std::exp(scores[i].loss.mean), std::exp(scores[own].loss.mean),
          100.0 * scores[i].bytes_read(), 100.0 * scores[own].bytes_read(),
          clear ? "" : " (within the interval)"));
    }
  }

  absl::Status Task(const std::string& task) {
    ASSIGN_OR_RETURN(const auto questions,
                     ReadQuestions(absl::StrCat(bench_.settings().data, "/", task, ".jsonl.xz"),
                                   bench_.tokenizer(), bench_.Samples(300, 16)));
    for (const QualityArm& arm : arms_list_) {
      ASSIGN_OR_RETURN(const auto score, ScoreChoices(arms_, arm.name, questions));
      const bool full = arm.name == "full";
      table_.rows.push_back(
          {.labels = {task, arm.label},
           .cells = {PlainCell(std::exp(score.answer_loss)), TableCell(),
                     WithPaper(ShareCell(score.right, score.questions), Paper(arm.label, task)),
                     PlainCell(full ? 1.0 : score.head_density),
                     PlainCell(full ? 1.0 : score.union_density), TableCell()},
           .n = score.questions});
      bench_.Progress(++done_, total_);
    }
    return absl::OkStatus();
  }

  TableBench& bench_;
  ArmBench arms_;
  int32_t prefill_;
  std::vector<QualityArm> arms_list_;
  Table table_;
  int64_t done_ = 0;
  int64_t total_ = 0;
  int compared_ = 0;
  int better_ = 0;
  int clearly_better_ = 0;
};

}  // namespace

absl::StatusOr<Table> MeasureQuality(TableBench& bench) {
  return Quality(bench).Measure();
}

}  // namespace eta
