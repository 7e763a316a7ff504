// What other weights of the same model cost: rounded to 8 or 4 bits at load, or another file of it,
// against the model as it is, with full and with the default's sparse attention.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "calibration/evaluation/needles/needle_evaluation.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "calibration/evaluation/tables/comparisons/paired_forms.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

using TextWindows = std::vector<std::vector<int32_t>>;

constexpr const char* kWays[] = {"full", kDefaultArm};
constexpr size_t kNumWays = std::size(kWays);
constexpr const char* kOwnForms[] = {"int8", "int4"};
constexpr double kMegabyte = 1e6;

// As rows name it: a format, or the last part of a path.
std::string FormLabel(const std::string& form) {
  const std::filesystem::path path(form);
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

// What a reader must be told of an error that a form has.
absl::Status OfForm(const std::string& form, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("against: ", form, ": ", std::string(status.message())));
}

absl::Status OtherModel(const std::string& form, const std::string& sentence) {
  return InvalidField("against", absl::StrCat(form, ": another model: ", sentence));
}

int64_t CountNumbers(const ModelConfig& config) {
  int64_t numbers = 0;
  for (const auto& [name, shape] : ExpectedTensors(config)) {
    int64_t product = 1;
    for (const int64_t side : shape) product *= side;
    numbers += product;
  }
  return numbers;
}

// A fine-tuned model of the same shape is not told apart.
absl::Status CheckShape(const std::string& form, const ModelConfig& model,
                        const ModelConfig& other) {
  const std::pair<const char*, int32_t ModelConfig::*> fields[] = {
      {"vocab_size", &ModelConfig::vocab_size},
      {"num_layers", &ModelConfig::num_layers},
      {"model_dim", &ModelConfig::model_dim},
      {"ffn_dim", &ModelConfig::ffn_dim},
      {"num_experts", &ModelConfig::num_experts},
      {"expert_ffn_dim", &ModelConfig::expert_ffn_dim},
      {"num_query_heads", &ModelConfig::num_query_heads},
      {"num_kv_heads", &ModelConfig::num_kv_heads},
      {"head_dim", &ModelConfig::head_dim}};
  for (const auto& [name, field] : fields) {
    if (other.*field == model.*field) continue;
    return OtherModel(form, absl::StrCat(name, " is ", other.*field, ", not ", model.*field));
  }
  if (other.has_predictor != model.has_predictor || other.gate != model.gate) {
    return OtherModel(form, "one of the two has a predictor or a gate that the other one lacks");
  }
  return absl::OkStatus();
}

// Two forms that differ by more than their weights would be compared for nothing.
absl::Status CheckSameModel(const std::string& form, TableBench& model, TableBench& other) {
  RETURN_IF_ERROR(CheckShape(form, model.config(), other.config()));
  const auto metric = [](TableBench& bench) {
    return bench.runtime().checkpoint().weights_digests().index_metric;
  };
  if (metric(model) != metric(other)) {
    return OtherModel(form, "its metric of the index is not the same");
  }
  return absl::OkStatus();
}

TableCell MeanCell(const std::vector<float>& values, int32_t window) {
  const MeanInterval mean = BlockMeanInterval(values, window);
  TableCell cell = PlainCell(mean.mean);
  if (mean.half_width) {
    cell.interval = std::pair(mean.mean - *mean.half_width, mean.mean + *mean.half_width);
  }
  return cell;
}

MeanInterval MoreLoss(const PairedRows& rows, int32_t window) {
  std::vector<float> more(rows.form.losses.size());
  std::ranges::transform(rows.form.losses, rows.model.losses, more.begin(), std::minus<>());
  return BlockMeanInterval(more, window);
}

class WeightForms {
 public:
  explicit WeightForms(TableBench& bench)
      : bench_(bench), context_(bench.Context(2048, 512)), prefill_(context_ / 2) {
    const std::vector<std::string>& against = bench.settings().against;
    own_ = against.empty();
    forms_ = own_ ? std::vector<std::string>(std::begin(kOwnForms), std::end(kOwnForms)) : against;
  }

  absl::StatusOr<Table> Measure() {
    ASSIGN_OR_RETURN(model_, bench_.MakeRunner(bench_.Geometry(), context_));
    // A backend may hold more bits than the file has.
    if (model_->weight_bytes() < static_cast<size_t>(2 * CountNumbers(bench_.config()))) {
      return absl::FailedPreconditionError(
          "weights: the model's own have fewer than 16 bits, and nothing could be compared with "
          "them (eta-eval import unpacks a file into a folder)");
    }
    for (const char* name : kWays) {
      ASSIGN_OR_RETURN(EvaluatedAttention way, bench_.Attention(name, bench_.Geometry()));
      ways_.push_back(std::move(way));
    }
    ASSIGN_OR_RETURN(windows_, Windows(bench_));
    // Before hours of work: the last form may be the one that is refused.
    for (const std::string& form : forms_) RETURN_IF_ERROR(Load(form).status());
    RETURN_IF_ERROR(MakeNeedles());
    total_ = std::ssize(forms_) * std::ssize(windows_) + (std::ssize(forms_) + 1);
    Table table = Empty();
    ASSIGN_OR_RETURN(needles_found_, Found(*model_));
    bench_.Progress(++done_, total_);
    for (const std::string& form : forms_) RETURN_IF_ERROR(Add(form, table));
    return table;
  }

 private:
  absl::StatusOr<TextWindows> Windows(const TableBench& bench) const {
    TextWindows windows;
    for (const BenchText& text : bench.Texts()) {
      ASSIGN_OR_RETURN(TextWindows of_text, bench.Windows(text, context_, bench.Samples(2, 1)));
      std::ranges::move(of_text, std::back_inserter(windows));
    }
    return windows;
  }

  absl::Status MakeNeedles() {
    ASSIGN_OR_RETURN(std::unique_ptr<TextSource> source,
                     TextSource::Open(bench_.Texts().front().path));
    ASSIGN_OR_RETURN(needles_, ReadNeedleWindows(*source, bench_.tokenizer(),
                                                 {.context = context_,
                                                  .windows = bench_.Samples(24, 3),
                                                  .seed = bench_.settings().seed}));
    return absl::OkStatus();
  }

  Table Empty() const {
    const auto tokens = std::ssize(windows_) * (context_ - prefill_);
    return {
        .name = "weights",
        .title = "Weights of other formats against the model's own",
        .method = absl::StrCat(
            "Forms of one model on the same rows: the second half of each window, decoded. Model "
            "is the one that was named, with --weights as asked. ratio: of perplexities, paired by "
            "token. kl: KL(model || this) of the next token; top_1: the share of rows whose "
            "likeliest token is the model's; both with the same attention. Intervals over windows. "
            "needles: the share of ",
            needles_.size(),
            " windows in which every token of the answer was the likeliest (Wilson's interval), "
            "all "
            "before the question a prompt. memory: what the weights take."),
        .counted = "tokens",
        .settings = {{"texts", absl::StrJoin(bench_.Texts(), ", ",
                                             [](std::string* out, const BenchText& text) {
                                               absl::StrAppend(out, text.name);
                                             })},
                     {"context", absl::StrCat(context_)},
                     {"prompt", absl::StrCat(prefill_)},
                     {"tokens", absl::StrCat(tokens)},
                     {"backend", bench_.runtime().backend().description()}},
        .keys = {"weights", "attention"},
        .columns = {{.name = "perplexity", .digits = 3},
                    {.name = "ratio", .digits = 4},
                    {.name = "kl", .unit = "nats", .digits = 5},
                    Percent("top_1", 2),
                    Percent("needles"),
                    Percent("union"),
                    {.name = "memory", .unit = "MB", .digits = 1}}};
  }

  absl::StatusOr<std::unique_ptr<TableBench>> Load(const std::string& form) const {
    absl::StatusOr<std::unique_ptr<TableBench>> other = bench_.LoadForm(form);
    if (!other.ok()) return OfForm(form, other.status());
    RETURN_IF_ERROR(CheckSameModel(form, bench_, **other));
    ASSIGN_OR_RETURN(const TextWindows same, Windows(**other));
    if (same != windows_) return OtherModel(form, "its tokenizer reads the texts otherwise");
    return other;
  }

  // The found ones of each way.
  absl::StatusOr<std::vector<int64_t>> Found(SequenceRunner& runner) const {
    ASSIGN_OR_RETURN(const auto scores,
                     EvaluateNeedles(OnlyRunner(runner), needles_, ways_,
                                     {.special_ids = bench_.tokenizer().special_ids()}));
    std::vector<int64_t> found;
    for (const NeedleScore& score : scores) found.push_back(score.found());
    return found;
  }

  absl::Status Add(const std::string& form, Table& table) {
    ASSIGN_OR_RETURN(const std::unique_ptr<TableBench> other, Load(form));
    const auto runner = other->MakeRunner(ways_.front().geometry, context_);
    // A backend that takes native weights alone has none of the table's own forms.
    if (own_ && absl::IsInvalidArgument(runner.status())) {
      return absl::FailedPreconditionError(std::string(runner.status().message()));
    }
    if (!runner.ok()) return OfForm(form, runner.status());
    PairedForms pair(*model_, **runner, ways_, bench_.tokenizer().special_ids());
    for (const std::vector<int32_t>& window : windows_) {
      RETURN_IF_ERROR(pair.Window(window, static_cast<size_t>(prefill_)));
      bench_.Progress(++done_, total_);
    }
    ASSIGN_OR_RETURN(const auto found, Found(**runner));
    bench_.Progress(++done_, total_);
    if (table.rows.empty()) {
      for (size_t way = 0; way < kNumWays; ++way) {
        table.rows.push_back(
            Row("model", way, pair.rows()[way].model, needles_found_[way], model_->weight_bytes()));
      }
    }
    std::string label = FormLabel(form);
    for (size_t way = 0; way < kNumWays; ++way) {
      const PairedRows& rows = pair.rows()[way];
      TableRow row = Row(label, way, rows.form, found[way], (*runner)->weight_bytes());
      row.cells[1] = ExpCell(MoreLoss(rows, ScoredRows()), row.n);
      row.cells[2] = MeanCell(rows.divergences, ScoredRows());
      row.cells[3] = MeanCell(rows.agreements, ScoredRows());
      table.findings.push_back(Finding(row, found[way], way));
      table.rows.push_back(std::move(row));
    }
    return absl::OkStatus();
  }

  int32_t ScoredRows() const { return context_ - prefill_; }

  TableRow Row(const std::string& label, size_t way, const FormRows& rows, int64_t found,
               size_t bytes) const {
    const auto tokens = static_cast<int64_t>(rows.losses.size());
    return {.labels = {label, kWays[way]},
            .cells = {ExpCell(BlockMeanInterval(rows.losses, ScoredRows()), tokens), TableCell(),
                      TableCell(), TableCell(), ShareCell(found, std::ssize(needles_)),
                      PlainCell(rows.union_density()),
                      PlainCell(static_cast<double>(bytes) / kMegabyte)},
            .n = tokens};
  }

  std::string Finding(const TableRow& row, int64_t found, size_t way) const {
    return absl::StrFormat(
        "%s, %s: KL %.5f nats, the same likeliest token for %.2f %%, perplexity %+.2f %%, %d of %d "
        "needles (model %d); %.0f MB of %.0f.",
        row.labels[0], row.labels[1], *row.cells[2].value, 100.0 * *row.cells[3].value,
        100.0 * (*row.cells[1].value - 1.0), found, std::ssize(needles_), needles_found_[way],
        *row.cells[6].value, static_cast<double>(model_->weight_bytes()) / kMegabyte);
  }

  TableBench& bench_;
  const int32_t context_;
  const int32_t prefill_;
  std::vector<std::string> forms_;
  bool own_ = false;  // nobody named the forms
  std::unique_ptr<SequenceRunner> model_;
  std::vector<EvaluatedAttention> ways_;
  TextWindows windows_;
  std::vector<NeedleWindow> needles_;
  std::vector<int64_t> needles_found_;  // by the model, of each way
  int64_t done_ = 0;                    // windows of forms, and the needles of each
  int64_t total_ = 0;
};

}  // namespace

absl::StatusOr<Table> MeasureWeights(TableBench& bench) {
  return WeightForms(bench).Measure();
}

}  // namespace eta
