#include "calibration/calibrate/calibration_passes.h"

#include <algorithm>
#include <functional>

#include "calibration/calibrate/divergence_rows.h"
#include "calibration/calibrate/pass_batch.h"
#include "calibration/solvers/interval.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr size_t kWindow = 64;
// Bytes of collected cells on the host that wait to be added: 10 MiB a sequence for 64 heads.
constexpr int64_t kMaxCellBytes = int64_t{1} << 30;

size_t CollectWindow(const ModelConfig& config, const ScoreBins& bins) {
  const int64_t bytes = int64_t{config.num_layers} * config.num_query_heads *
                        CalibrationCells(bins).size() * int64_t{sizeof(uint64_t)};
  return std::clamp<size_t>(static_cast<size_t>(kMaxCellBytes / bytes), 1, kWindow);
}

}  // namespace

int64_t TotalTokens(TokenSpans sequences) {
  int64_t tokens = 0;
  for (const auto& sequence : sequences) tokens += static_cast<int64_t>(sequence.size());
  return tokens;
}

CalibrationPasses::CalibrationPasses(Engine& engine, const std::string& id,
                                     const std::string& tenant, CalibrationClock& clock,
                                     const std::stop_token& stop)
    : engine_(engine), id_(id), tenant_(tenant), clock_(clock), stop_(stop) {}

Pass CalibrationPasses::Start(std::span<const int32_t> sequence,
                              const AttentionChoice& attention) const {
  return {.id = id_,
          .tenant = tenant_,
          .tokens = {sequence.begin(), sequence.end()},
          .attention = attention,
          .decode_from = static_cast<int32_t>(sequence.size())};
}

absl::StatusOr<CollectedCells> CalibrationPasses::Collect(TokenSpans sequences,
                                                          const AttentionChoice& attention,
                                                          Rows rows) {
  const ModelConfig& config = engine_.info().config;
  const ScoreBins bins;
  ASSIGN_OR_RETURN(CollectedCells collected,
                   CollectedCells::Create(config.num_layers, config.num_query_heads, bins));
  const auto make = [&](size_t i) {
    Pass pass = Start(sequences[i], attention);
    pass.bins = bins;
    if (rows == Rows::kSecondHalf) pass.collect_from = DecodeFrom(sequences[i]);
    return pass;
  };
  const auto collect = [&](size_t /*i*/, PassOutcome outcome) {
    return collected.Add(outcome.cells, outcome.collected_rows);
  };
  RETURN_IF_ERROR(Run(sequences, CollectWindow(config, bins), make, collect));
  return collected;
}

absl::StatusOr<DecodeMeasurement> CalibrationPasses::Measure(TokenSpans sequences,
                                                             const AttentionChoice& attention,
                                                             Wanted wanted) {
  const bool full = attention.mode == AttentionMode::kFull;
  DivergenceRows chosen;
  KeptLogits none;
  KeptLogits& first = wanted.full_logits != nullptr ? *wanted.full_logits : none;
  if (wanted.full_logits != nullptr) {
    first.vocab_size = engine_.info().config.vocab_size;
    chosen = ChooseDivergenceRows(sequences, first.vocab_size);
  }
  KeptDivergence divergence(first, /*is_first=*/first.rows.empty());
  const auto make = [&](size_t i) {
    Pass pass = Start(sequences[i], attention);
    if (wanted.full_logits != nullptr) pass.logit_rows = chosen.of_sequence[i];
    if (!full) pass.decode_from = DecodeFrom(sequences[i]);
    if (wanted.perplexity) pass.loss_from = DecodeFrom(sequences[i]);
    pass.recall = wanted.recall && !full;
    pass.shadow = wanted.mass && !full;
    return pass;
  };
  DecodeMeter meter;
  const auto collect = [&](size_t /*i*/, const PassOutcome& outcome) {
    meter.Add(outcome);
    divergence.Add(outcome.logits);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Run(sequences, kWindow, make, collect));
  DecodeMeasurement measurement = meter.Measurement();
  if (const std::vector<float>& rows = divergence.rows(); !rows.empty()) {
    measurement.divergence = {
        .nats = BlockMeanInterval(rows).mean, .rows = rows, .block = chosen.block};
  }
  return measurement;
}

absl::StatusOr<std::vector<bool>> CalibrationPasses::Retrieve(std::span<const NeedleWindow> windows,
                                                              const AttentionChoice& attention) {
  std::vector<std::span<const int32_t>> sequences;
  for (const NeedleWindow& window : windows) sequences.emplace_back(window.tokens);
  const auto make = [&](size_t i) {
    Pass pass = Start(sequences[i], attention);
    if (attention.mode != AttentionMode::kFull) pass.decode_from = windows[i].question;
    pass.loss_from = windows[i].answer - 1;  // the row that foretells the first of the answer
    pass.top = true;
    return pass;
  };
  std::vector<bool> found;
  const auto collect = [&found](size_t /*i*/, const PassOutcome& outcome) {
    found.push_back(std::find(outcome.top.begin(), outcome.top.end(), 0) == outcome.top.end());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Run(sequences, kWindow, make, collect));
  return found;
}

absl::Status CalibrationPasses::Run(
    TokenSpans sequences, size_t window, const std::function<Pass(size_t)>& make,
    const std::function<absl::Status(size_t, PassOutcome)>& collect) {
  clock_.BeginPass(static_cast<int32_t>(sequences.size()), TotalTokens(sequences));
  const auto progress = [this](int64_t rows_done, size_t collected) {
    clock_.Advance(rows_done, static_cast<int32_t>(collected));
  };
  absl::Status status = RunPasses(engine_,
                                  {.count = sequences.size(),
                                   .window = window,
                                   .make = make,
                                   .collect = collect,
                                   .progress = progress},
                                  stop_);
  clock_.EndPass();
  return status;
}

}  // namespace eta
