#include "engine/front/warm_up.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/batching/steps/step_batch.h"
#include "engine/request/request_validation.h"

namespace eta {

absl::Status WarmUp(const Backend& backend, Model& model, const KvCache& cache, int32_t max_rows) {
  const int64_t block_size = cache.geometry().block_size;
  // A token follows the longest prompt.
  const int64_t most = std::min<int64_t>(max_rows, cache.num_blocks() * block_size - 1);
  std::vector<int32_t> blocks(static_cast<size_t>(most / block_size + 1));
  std::iota(blocks.begin(), blocks.end(), 0);
  // Groups of layers write over each other's pages, and nobody reads what is left there.
  const std::vector<std::span<const int32_t>> more_tables(
      static_cast<size_t>(cache.groups().size() - 1), blocks);
  const std::vector<int32_t> tokens(static_cast<size_t>(most + 1));
  StepBatch batch(model, cache);

  const auto run = [&](const SequenceRows& rows, const SampleRow& sample) {
    batch.Clear();
    batch.Add(rows, tokens);
    RowLogits logits = {.row = rows.num_rows - 1, .sample = sample};
    return batch.Run(std::span(&logits, 1));
  };
  SequenceRows rows = {.kind = RowKind::kPrefill,
                       .rope_theta = model.config().rope_theta,
                       .block_table = blocks,
                       .more_tables = more_tables};
  ResolveAttention({}, model.config()).ApplyTo(rows);
  while (rows.num_rows < most) {
    const int64_t next = backend.PaddedRows(rows.num_rows + 1);
    rows.num_rows = static_cast<int32_t>(std::min(next, most));
    RETURN_IF_ERROR(run(rows, {.top_k = 40, .top_p = 0.9f}));
  }

  rows.position = rows.num_rows;
  rows.num_rows = 1;
  rows.kind = RowKind::kDecode;
  for (const AttentionChoice& choice :
       {AttentionChoice{}, AttentionChoice{.mode = AttentionMode::kFull}}) {
    ResolveAttention(choice, model.config()).ApplyTo(rows);
    RETURN_IF_ERROR(run(rows, {.temperature = 0.0f}));
  }
  return absl::OkStatus();
}

}  // namespace eta
