#include "training/commands/rank_source.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "engine/base/status_macros.h"

namespace eta::training {
namespace {

// Leaves targets and weights to answers alone.
void KeepAnswers(std::span<const uint8_t> answers, std::span<int32_t> targets,
                 std::span<float> weights) {
  const auto count = std::accumulate(answers.begin(), answers.end(), 0);
  if (count == 0) {
    std::ranges::fill(targets, -1);
    return;
  }
  const float weight = static_cast<float>(answers.size()) / static_cast<float>(count);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i] == 0) targets[i] = -1;
    weights[i] = answers[i] == 0 ? 0.0f : weight;
  }
}

MicroBatch BatchOf(const TrainingSequences& read, LossKind loss) {
  const auto rows = static_cast<size_t>(read.count);
  const size_t length = read.answers.size() / rows;
  MicroBatch batch = {.sequences = read.count, .length = static_cast<int32_t>(length)};
  for (size_t row = 0; row < rows; ++row) {
    const auto tokens = std::span(read.tokens).subspan(row * (length + 1), length + 1);
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end() - 1);
    batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
  }
  if (loss == LossKind::kText) return batch;
  batch.ce_weights.resize(batch.targets.size());
  for (size_t row = 0; row < rows; ++row) {
    KeepAnswers(std::span(read.answers).subspan(row * length, length),
                std::span(batch.targets).subspan(row * length, length),
                std::span(batch.ce_weights).subspan(row * length, length));
  }
  return batch;
}

}  // namespace

absl::StatusOr<MicroBatches> ReadMicroBatches(TrainingData& data, LossKind loss, uint64_t first,
                                              int32_t micro_batches, int32_t sequences) {
  MicroBatches batches;
  for (int32_t i = 0; i < micro_batches; ++i) {
    ASSIGN_OR_RETURN(const TrainingSequences read, data.Read(first, sequences));
    batches.push_back(BatchOf(read, loss));
    first += static_cast<uint64_t>(sequences);
  }
  return batches;
}

absl::Status RankSource::Next(MicroBatch& batch) {
  if (batches_.empty()) return absl::OutOfRangeError("data: the step has no batch left");
  batch = std::move(batches_.front());
  batches_.pop_front();
  return absl::OkStatus();
}

}  // namespace eta::training
