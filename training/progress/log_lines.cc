// lint: untrusted-input, fuzz-covered
#include "training/progress/log_lines.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"

namespace eta::training {
namespace {

constexpr size_t kMaxLineBytes = 4096;
constexpr size_t kMaxDepth = 2;
constexpr int64_t kMaxCount = int64_t{1} << 53;
constexpr int32_t kMaxNeedles = 1 << 20;

// One object on one line, its fields in the order of the calls.
class LineWriter {
 public:
  explicit LineWriter(const char* event) : text_(absl::StrCat("{\"event\":\"", event, "\"")) {}

  LineWriter& Add(const char* name, int64_t value) {
    absl::StrAppend(&text_, ",\"", name, "\":", value);
    return *this;
  }
  LineWriter& Add(const char* name, double value) {
    // As the library writes numbers: they come back to the bit. JSON has no NaN.
    absl::StrAppend(&text_, ",\"", name, "\":", nlohmann::json(value).dump());
    return *this;
  }
  LineWriter& AddIf(const char* name, bool value) {
    if (value) absl::StrAppend(&text_, ",\"", name, "\":true");
    return *this;
  }
  LineWriter& Add(const char* name, const std::optional<double>& value) {
    return value ? Add(name, *value) : *this;
  }
  std::string End() { return std::move(text_) + "}\n"; }

 private:
  std::string text_;
};

// A number; null, which stands for NaN and infinity, becomes NaN.
double Number(JsonFields& fields, const char* name) {
  return fields.IsNull(name) ? NAN : fields.Number(name);
}

std::optional<double> NumberOrNone(JsonFields& fields, const char* name) {
  if (!fields.Has(name)) return std::nullopt;
  return Number(fields, name);
}

StepRecord ReadStep(JsonFields& fields) {
  StepRecord record;
  record.step = fields.Integer("step", 0, kMaxCount);
  record.tokens = fields.Integer("tokens", 0, kMaxCount);
  record.seconds = Number(fields, "seconds");
  record.tokens_per_second = Number(fields, "tokens_per_second");
  record.loss = Number(fields, "loss");
  record.answer_loss = NumberOrNone(fields, "answer_loss");
  record.head_density = NumberOrNone(fields, "head_density");
  record.block_density = NumberOrNone(fields, "block_density");
  record.gradient_norm = Number(fields, "gradient_norm");
  record.rate = Number(fields, "rate");
  record.beta = Number(fields, "beta");
  record.gate_strength = Number(fields, "gate_strength");
  record.sparsity_weight = Number(fields, "sparsity_weight");
  record.skipped_steps = fields.Integer("skipped_steps", 0, kMaxCount);
  return record;
}

EvaluationRecord ReadEvaluation(JsonFields& fields) {
  EvaluationRecord record;
  record.step = fields.Integer("step", 0, kMaxCount);
  record.test = fields.Has("test") && fields.Boolean("test");
  record.as_trained = fields.Has("as_trained") && fields.Boolean("as_trained");
  record.full_perplexity = Number(fields, "full_perplexity");
  record.sparse_perplexity = NumberOrNone(fields, "sparse_perplexity");
  record.head_density = Number(fields, "head_density");
  record.union_density = Number(fields, "union_density");
  record.reads = NumberOrNone(fields, "reads");
  record.holds = NumberOrNone(fields, "holds");
  record.needles = static_cast<int32_t>(fields.Integer("needles", 0, kMaxNeedles));
  record.full_hits = static_cast<int32_t>(fields.Integer("full_hits", 0, kMaxNeedles));
  record.sparse_hits = static_cast<int32_t>(fields.Integer("sparse_hits", 0, kMaxNeedles));
  return record;
}

absl::Status ReadLine(std::string_view line, int64_t last_step, RunHistory& history) {
  ASSIGN_OR_RETURN(const JsonTree tree, ParseStrictJson("it", line, kMaxLineBytes, kMaxDepth));
  JsonFields fields(tree.root(), "");
  const std::string event = fields.Text("event");
  if (event == "evaluation") {
    const EvaluationRecord record = ReadEvaluation(fields);
    RETURN_IF_ERROR(fields.Finish());
    if (record.step <= last_step) history.evaluations.push_back(record);
    return absl::OkStatus();
  }
  if (event != "step") fields.Fail("event", "is neither step nor evaluation");
  const StepRecord record = ReadStep(fields);
  RETURN_IF_ERROR(fields.Finish());
  if (record.step <= last_step) history.steps.push_back(record);
  return absl::OkStatus();
}

}  // namespace

std::string StepLine(const StepRecord& record) {
  return LineWriter("step")
      .Add("step", record.step)
      .Add("tokens", record.tokens)
      .Add("seconds", record.seconds)
      .Add("tokens_per_second", record.tokens_per_second)
      .Add("loss", record.loss)
      .Add("answer_loss", record.answer_loss)
      .Add("head_density", record.head_density)
      .Add("block_density", record.block_density)
      .Add("gradient_norm", record.gradient_norm)
      .Add("rate", record.rate)
      .Add("beta", record.beta)
      .Add("gate_strength", record.gate_strength)
      .Add("sparsity_weight", record.sparsity_weight)
      .Add("skipped_steps", record.skipped_steps)
      .End();
}

std::string EvaluationLine(const EvaluationRecord& record) {
  return LineWriter("evaluation")
      .Add("step", record.step)
      .AddIf("test", record.test)
      .AddIf("as_trained", record.as_trained)
      .Add("full_perplexity", record.full_perplexity)
      .Add("sparse_perplexity", record.sparse_perplexity)
      .Add("head_density", record.head_density)
      .Add("union_density", record.union_density)
      .Add("reads", record.reads)
      .Add("holds", record.holds)
      .Add("needles", int64_t{record.needles})
      .Add("full_hits", int64_t{record.full_hits})
      .Add("sparse_hits", int64_t{record.sparse_hits})
      .End();
}

std::string HistoryText(const RunHistory& history) {
  std::string text;
  size_t next = 0;
  for (const StepRecord& record : history.steps) {
    for (; next < history.evaluations.size() && history.evaluations[next].step < record.step;
         ++next) {
      text += EvaluationLine(history.evaluations[next]);
    }
    text += StepLine(record);
  }
  for (; next < history.evaluations.size(); ++next) {
    text += EvaluationLine(history.evaluations[next]);
  }
  return text;
}

absl::StatusOr<RunHistory> ParseRunLog(const std::string& text, int64_t last_step) {
  RunHistory history;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++number;
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const absl::Status read =
        ReadLine(std::string_view(text).substr(begin, end - begin), last_step, history);
    if (!read.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("log: line ", number, ": ", std::string(read.message())));
    }
    begin = end + 1;
  }
  return history;
}

}  // namespace eta::training
