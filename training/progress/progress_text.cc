#include "training/progress/progress_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eta::training {
namespace {

// Three digits and a letter: 812K.
std::string Short(double number) {
  if (number >= 999.5e3) return absl::StrFormat("%.2fM", number / 1e6);
  if (number >= 999.5) return absl::StrFormat("%.0fK", number / 1e3);
  return absl::StrFormat("%.0f", number);
}

std::string Duration(double seconds) {
  if (seconds < 90.0) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 90.0 * 60.0) return absl::StrFormat("%.0f min", seconds / 60.0);
  return absl::StrFormat("%.1f h", seconds / 3600.0);
}

}  // namespace

std::string ProgressText(const StepRecord& record, int64_t steps) {
  std::string text = absl::StrFormat("step %d of %d: loss %.4f", record.step, steps, record.loss);
  if (record.answer_loss) absl::StrAppendFormat(&text, ", answers %.4f", *record.answer_loss);
  if (record.head_density) absl::StrAppendFormat(&text, ", heads %.3f", *record.head_density);
  if (record.block_density) absl::StrAppendFormat(&text, ", blocks %.3f", *record.block_density);
  absl::StrAppend(&text, ", ", Short(record.tokens_per_second), " tokens/s");
  if (record.skipped_steps > 0) absl::StrAppend(&text, ", ", record.skipped_steps, " skipped");
  if (record.step > 0 && record.step < steps && record.tokens_per_second > 0.0) {
    const double tokens_per_step =
        static_cast<double>(record.tokens) / static_cast<double>(record.step);
    const double left = static_cast<double>(steps - record.step) * tokens_per_step;
    absl::StrAppend(&text, ", ", Duration(left / record.tokens_per_second), " left");
  }
  return text;
}

std::string EvaluationText(const EvaluationRecord& record) {
  std::string text = absl::StrFormat("step %d: %s perplexity %.4f %s", record.step,
                                     record.test ? "test" : "held-out", record.full_perplexity,
                                     record.as_trained ? "as trained" : "full");
  if (record.sparse_perplexity) {
    absl::StrAppendFormat(&text, ", %.4f sparse (%+.2f %%), density %.3f by head, %.3f union",
                          *record.sparse_perplexity,
                          100.0 * (*record.sparse_perplexity / record.full_perplexity - 1.0),
                          record.head_density, record.union_density);
  }
  if (record.reads) {
    absl::StrAppendFormat(&text, ", of full attention's keys and values reads %.3f", *record.reads);
    if (record.holds) absl::StrAppendFormat(&text, " and holds %.3f", *record.holds);
  }
  if (record.needles > 0) {
    absl::StrAppendFormat(&text, ", needles %d", record.full_hits);
    if (record.sparse_perplexity) absl::StrAppendFormat(&text, " and %d", record.sparse_hits);
    absl::StrAppendFormat(&text, " of %d", record.needles);
  }
  return text;
}

}  // namespace eta::training
