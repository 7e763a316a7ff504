#include "engine/passes/pass_run.h"

#include <cmath>
#include <functional>
#include <new>
#include <utility>

#include "engine/base/out_of_memory.h"

namespace eta {
namespace {

void AddTo(std::vector<int64_t>& sums, std::span<const int64_t> more) {
  std::transform(sums.begin(), sums.end(), more.begin(), sums.begin(), std::plus<>());
}

}  // namespace

PassRun::PassRun(PassRunOptions options, const ModelConfig& config)
    : blocks(GroupLayers(config), config.block_size),
      options_(std::move(options)),
      vocab_size_(static_cast<size_t>(config.vocab_size)) {
  outcome_.logits.resize(pass().logit_rows.size() * vocab_size_);
  if (pass().shadow) {
    const size_t row_layers = (pass().tokens.size() - static_cast<size_t>(pass().decode_from)) *
                              static_cast<size_t>(config.num_full_layers());
    outcome_.mass.reserve(row_layers);
    outcome_.error.reserve(row_layers);
  }
  if (!pass().recall) return;
  const auto heads =
      static_cast<size_t>(config.num_layers) * static_cast<size_t>(config.num_query_heads);
  outcome_.above.resize(heads);
  outcome_.above_admitted.resize(heads);
}

PassRun::~PassRun() {
  if (!owed_) return;
  try {
    Fail(OutOfMemory());
  } catch (const std::bad_alloc&) {  // the process is about to end
  }
}

void PassRun::Fail(const absl::Status& status) {
  options_.sink->OnEnded(status);
  owed_ = false;
}

SequenceRows PassRun::NextRows(int32_t row_begin, int32_t max_rows) const {
  const bool prefill = num_computed < pass().decode_from;
  int32_t end = num_tokens();
  const auto cut_at = [&](int32_t position) {
    if (num_computed < position) end = std::min(end, position);
  };
  cut_at(pass().decode_from);
  cut_at(measured_);
  if (pass().bins) cut_at(pass().collect_from);
  SequenceRows rows;
  rows.row_begin = row_begin;
  rows.num_rows = std::min(max_rows, end - num_computed);
  rows.position = num_computed;
  rows.kind = prefill ? RowKind::kPrefill : RowKind::kDecode;
  rows.rope_theta = options_.rope_theta;
  options_.attention.ApplyTo(rows);
  rows.tempered = options_.tempered.words();
  rows.calibrate = prefill && pass().bins && num_computed >= pass().collect_from && AreNew(rows);
  blocks.ApplyTo(rows);
  return rows;
}

float* PassRun::LogitsOf(int32_t position) {
  const std::vector<int32_t>& rows = pass().logit_rows;
  const auto found = std::lower_bound(rows.begin(), rows.end(), position);
  if (found == rows.end() || *found != position) return nullptr;
  return outcome_.logits.data() + static_cast<size_t>(found - rows.begin()) * vocab_size_;
}

void PassRun::AddRecall(std::span<const int64_t> above, std::span<const int64_t> above_admitted) {
  AddTo(outcome_.above, above);
  AddTo(outcome_.above_admitted, above_admitted);
}

void PassRun::AddShadow(float mass, float error) {
  outcome_.mass.push_back(mass);
  outcome_.error.push_back(error);
  if (!std::isfinite(mass) || !std::isfinite(error)) return;
  Count(CountShadowRow(mass, error));
}

void PassRun::Advance(const SequenceRows& rows) {
  num_computed += rows.num_rows;
  blocks.KeepBehind(num_computed);
  if (rows.calibrate) outcome_.collected_rows += rows.num_rows;
  if (num_computed <= measured_) return;
  measured_ = num_computed;
  options_.sink->OnProgress(measured_);
}

void PassRun::Preempt() {
  num_computed = 0;
  ++outcome_.preemptions;
}

void PassRun::Finish(std::vector<uint64_t> cells) {
  outcome_.cells = std::move(cells);
  options_.sink->OnEnded(std::move(outcome_));
  owed_ = false;
}

}  // namespace eta
