#include "calibration/evaluation/tables/comparisons/choice_task.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/attention/sequence_settings.h"
#include "calibration/evaluation/runtime/read_meter.h"
#include "calibration/evaluation/text/line_reader.h"
#include "calibration/solvers/sample_split.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

constexpr size_t kMostQuestions = 1 << 16;

// One way of attending over questions.
class ChoiceRun {
 public:
  ChoiceRun(SequenceRunner& runner, const EvaluatedAttention& attention,
            std::span<const int32_t> special_ids)
      : runner_(runner),
        attention_(attention),
        special_ids_(special_ids),
        meter_(runner, attention.options),
        logprobs_(static_cast<size_t>(runner.max_rows())) {}

  // The log-probability of a choice.
  absl::StatusOr<double> Score(const Question& question, const std::vector<int32_t>& choice) {
    std::vector<int32_t> tokens = question.prompt;
    tokens.insert(tokens.end(), choice.begin(), choice.end());
    RETURN_IF_ERROR(runner_.Begin(SequenceSettingsOf(attention_, special_ids_, runner_.config(),
                                                     static_cast<int64_t>(tokens.size()))));
    const bool full = ReadsAll(attention_, static_cast<int32_t>(tokens.size()));
    double sum = 0.0;
    size_t end = 0;
    for (size_t begin = 0; begin + 1 < tokens.size(); begin = end) {
      end = std::min(tokens.size() - 1, begin + logprobs_.size());
      if (begin == 0 && !full) end = 1;
      RunnerStep step = {.tokens = std::span(tokens).subspan(begin, end - begin),
                         .kind = full || begin == 0 ? RowKind::kPrefill : RowKind::kDecode,
                         .targets = std::span(tokens).subspan(begin + 1, end - begin),
                         .logprobs = std::span(logprobs_).first(end - begin)};
      if (step.kind == RowKind::kDecode) step.outputs = meter_.Outputs();
      RETURN_IF_ERROR(runner_.Run(step));
      for (size_t row = 0; step.kind == RowKind::kDecode && row < end - begin; ++row) {
        sums_.Add(meter_.DecodeRow(end - begin, row, begin));
      }
      for (size_t i = begin; i < end; ++i) {
        if (i + 1 >= question.prompt.size()) sum += logprobs_[i - begin];
      }
    }
    return sum;
  }

  void Finish(ChoiceScore& score) const {
    if (sums_.decode_rows == 0) return;
    score.head_density = sums_.head_density();
    score.union_density = sums_.union_density();
  }

 private:
  SequenceRunner& runner_;
  const EvaluatedAttention& attention_;
  std::span<const int32_t> special_ids_;
  ReadMeter meter_;
  std::vector<float> logprobs_;
  AttentionSums sums_;
};

}  // namespace

int32_t LongestAsked(std::span<const Question> questions, int32_t context) {
  size_t longest = 0;
  for (const Question& question : questions) {
    size_t choice = 0;
    for (const auto& one : question.choices) choice = std::max(choice, one.size());
    const size_t tokens = question.prompt.size() + choice;
    if (question.prompt.empty() || tokens > static_cast<size_t>(context)) continue;
    longest = std::max(longest, tokens);
  }
  return static_cast<int32_t>(longest);
}

bool ReadsAll(const EvaluatedAttention& way, int32_t keys) {
  if (way.options.admit_all) return true;
  const bool chooses = way.rival != nullptr || way.options.confirm;
  return !chooses && keys / way.geometry.block_size <= NumAlwaysRead(way.options);
}

absl::StatusOr<std::vector<Question>> ReadQuestions(const std::string& path,
                                                    const Tokenizer& tokenizer, int32_t count) {
  ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path));
  std::vector<QuestionText> texts;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<std::string> line, lines.Next());
    if (!line.has_value()) break;
    std::optional<QuestionText> text = ParseQuestion(*line);
    if (!text) {
      return InvalidField("text", absl::StrCat("line ", lines.number(),
                                               " is no question: an object with prompt, 2 to ",
                                               kMostChoices, " choices and the answer's index"));
    }
    text->line = lines.number();
    texts.push_back(*std::move(text));
    if (texts.size() > kMostQuestions) {
      return InvalidField("text", absl::StrCat("more than ", kMostQuestions, " questions"));
    }
  }
  if (texts.empty()) return InvalidField("text", "the file has no questions");
  std::vector<Question> questions;
  for (const QuestionText& text : KeepSpread(std::move(texts), count)) {
    absl::StatusOr<Question> question = TokenizeChoices(text, tokenizer);
    if (!question.ok()) {
      return InField(absl::StrCat("text, line ", text.line), question.status());
    }
    questions.push_back(*std::move(question));
  }
  return questions;
}

absl::StatusOr<ChoiceScore> ScoreChoices(ArmBench& arms, const std::string& attention,
                                         const std::vector<Question>& questions,
                                         const std::function<void(int64_t)>& progress) {
  ASSIGN_OR_RETURN(const EvaluatedAttention way, arms.Attention(attention));
  ASSIGN_OR_RETURN(SequenceRunner* const runner, arms.runners().For(way.geometry));
  RivalBackend& rivals = arms.bench().rivals();
  rivals.Use(way.rival);
  const absl::Cleanup done_choosing = [&rivals] { rivals.Use(nullptr); };
  ChoiceRun run(*runner, way, arms.bench().tokenizer().special_ids());
  ChoiceScore score;
  double loss = 0.0;
  size_t answer_tokens = 0;
  for (const Question& question : questions) {
    if (progress) progress(1);
    if (LongestAsked(std::span(&question, 1), arms.context()) == 0) continue;
    std::vector<double> sums;
    for (const std::vector<int32_t>& choice : question.choices) {
      ASSIGN_OR_RETURN(const double sum, run.Score(question, choice));
      sums.push_back(sum);
    }
    const auto right = static_cast<size_t>(question.answer);
    loss -= sums[right];
    answer_tokens += question.choices[right].size();
    ++score.questions;
    score.right += std::ranges::max_element(sums) - sums.begin() == question.answer ? 1 : 0;
  }
  if (answer_tokens > 0) score.answer_loss = loss / static_cast<double>(answer_tokens);
  run.Finish(score);
  return score;
}

}  // namespace eta
