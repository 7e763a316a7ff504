#include "calibration/evaluation/tables/comparisons/paired_forms.h"

#include <algorithm>
#include <numeric>

#include "calibration/evaluation/attention/sequence_settings.h"
#include "calibration/evaluation/perplexity/alignment.h"
#include "engine/base/status_macros.h"

namespace eta {

PairedForms::Side::Side(SequenceRunner& its_runner, std::span<const EvaluatedAttention> ways)
    : runner(its_runner), logprobs(static_cast<size_t>(its_runner.max_rows())) {
  for (const EvaluatedAttention& way : ways) meters.emplace_back(runner, way.options);
}

PairedForms::PairedForms(SequenceRunner& model, SequenceRunner& form,
                         std::span<const EvaluatedAttention> ways,
                         std::span<const int32_t> special_ids)
    : ways_(ways),
      special_ids_(special_ids),
      model_(model, ways),
      form_(form, ways),
      rows_(ways.size()),
      all_rows_(static_cast<size_t>(model.max_rows())) {
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
}

SequenceSettings PairedForms::Settings(const Side& side, size_t way,
                                       std::span<const int32_t> window) const {
  return SequenceSettingsOf(ways_[way], special_ids_, side.runner.config(),
                            static_cast<int64_t>(window.size()) - 1);
}

absl::Status PairedForms::Prompt(Side& side, size_t way, std::span<const int32_t> window,
                                 size_t prefill) {
  RETURN_IF_ERROR(side.runner.Begin(Settings(side, way, window)));
  RETURN_IF_ERROR(side.runner.RunPrompt(window.first(prefill)));
  side.runner.Mark();
  return absl::OkStatus();
}

absl::Status PairedForms::Step(Side& side, size_t way, std::span<const int32_t> window,
                               size_t begin, size_t count, FormRows& rows) {
  const bool full = ways_[way].options.admit_all;
  ReadMeter& meter = side.meters[way];
  side.logits.resize(count * static_cast<size_t>(side.runner.config().vocab_size));
  RunnerStep step = {.tokens = window.subspan(begin, count),
                     .kind = full ? RowKind::kPrefill : RowKind::kDecode,
                     .targets = window.subspan(begin + 1, count),
                     .logprobs = std::span(side.logprobs).first(count),
                     .logit_rows = std::span(all_rows_).first(count),
                     .logits = side.logits};
  if (!full) step.outputs = meter.Outputs();
  RETURN_IF_ERROR(side.runner.Run(step));
  for (const float logprob : step.logprobs) rows.losses.push_back(-logprob);
  for (size_t row = 0; !full && row < count; ++row) {
    rows.sums.Add(meter.DecodeRow(count, row, begin));
  }
  return absl::OkStatus();
}

void PairedForms::Compare(size_t count, PairedRows& rows) const {
  const auto width = static_cast<size_t>(model_.runner.config().vocab_size);
  for (size_t row = 0; row < count; ++row) {
    const LogitAlignment alignment =
        AlignLogits(std::span(model_.logits).subspan(row * width, width),
                    std::span(form_.logits).subspan(row * width, width));
    rows.divergences.push_back(static_cast<float>(alignment.kl));
    rows.agreements.push_back(alignment.same_best ? 1.0f : 0.0f);
  }
}

absl::Status PairedForms::Window(std::span<const int32_t> window, size_t prefill) {
  const size_t rows = window.size() - 1;
  for (const std::vector<size_t>& group : ByPrompt(ways_, /*rivals_apart=*/false)) {
    for (Side* side : {&model_, &form_}) {
      RETURN_IF_ERROR(Prompt(*side, group.front(), window, prefill));
    }
    for (const size_t way : group) {
      for (Side* side : {&model_, &form_}) {
        RETURN_IF_ERROR(side->runner.Return(Settings(*side, way, window)));
      }
      PairedRows& paired = rows_[way];
      for (size_t begin = prefill; begin < rows; begin += all_rows_.size()) {
        const size_t count = std::min(all_rows_.size(), rows - begin);
        RETURN_IF_ERROR(Step(model_, way, window, begin, count, paired.model));
        RETURN_IF_ERROR(Step(form_, way, window, begin, count, paired.form));
        Compare(count, paired);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace eta
