#include "calibration/evaluation/rivals/kept_blocks.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "calibration/evaluation/rivals/host_rows.h"
#include "kernels/quantize.h"

namespace eta {

void RoundToCache(DType dtype, std::span<const float> row, std::span<float> out) {
  if (dtype == DType::kFloat8E4M3) {
    std::vector<uint8_t> codes(row.size());
    const auto scale = std::ldexp(1.0f, QuantizeRow(row, codes));
    for (size_t i = 0; i < row.size(); ++i) out[i] = scale * E4M3ToFloat(codes[i]);
    return;
  }
  for (size_t i = 0; i < row.size(); ++i) out[i] = RoundTo(dtype, row[i]);
}

float BoxBound(std::span<const float> q, std::span<const float> low, std::span<const float> high) {
  float sum = 0.0f;
  for (size_t i = 0; i < q.size(); ++i) sum += std::max(q[i] * low[i], q[i] * high[i]);
  return sum;
}

void KeptLayer::KeepKey(Block& block, int32_t offset, const float* key) const {
  const auto d = static_cast<size_t>(geometry_.head_dim);
  block.keys.resize(d * Stride());
  std::vector<float> rounded(d);
  RoundToCache(geometry_.dtype, {key, d}, rounded);
  for (size_t i = 0; i < d; ++i) {
    block.keys[i * Stride() + static_cast<size_t>(offset)] = rounded[i];
  }
}

void KeptLayer::KeepValue(Block& block, int32_t offset, const float* value) const {
  const auto d = static_cast<size_t>(geometry_.head_dim);
  block.values.resize(d * static_cast<size_t>(geometry_.block_size));
  RoundToCache(geometry_.dtype, {value, d},
               std::span(block.values).subspan(static_cast<size_t>(offset) * d, d));
}

void KeptLayer::Box(Block& block) const {
  const auto d = static_cast<size_t>(geometry_.head_dim);
  block.low.resize(d);
  block.high.resize(d);
  for (size_t i = 0; i < d; ++i) {
    const auto column =
        std::span(block.keys).subspan(i * Stride(), static_cast<size_t>(geometry_.block_size));
    const auto [low, high] = std::ranges::minmax(column);
    block.low[i] = low;
    block.high[i] = high;
  }
}

void KeptLayer::KeepBlock(const SequenceRows& rows, int32_t table, const HostRows& keys,
                          const HostRows* values, int32_t ordinal, int32_t kv_head, bool box) {
  const int32_t b = geometry_.block_size;
  const int32_t end = std::min(rows.position + rows.num_rows, (ordinal + 1) * b);
  Block& kept = blocks_[Index(rows.table(table)[static_cast<size_t>(ordinal)], kv_head)];
  for (int32_t t = std::max(rows.position, ordinal * b); t < end; ++t) {
    const int64_t row = rows.row_begin + t - rows.position;
    const int64_t column = int64_t{kv_head} * geometry_.head_dim;
    KeepKey(kept, t % b, keys.row(row).data() + column);
    if (values != nullptr) KeepValue(kept, t % b, values->row(row).data() + column);
  }
  if (box && end == (ordinal + 1) * b) Box(kept);
}

void KeptLayer::Keep(const BatchView& batch, const AppendKvParams& params, Backend& backend,
                     const KeptParts& parts, cpu::Workers& workers) {
  if (!parts.records && !parts.keys && !parts.boxes && !parts.values) return;
  if (params.kv.records == nullptr) return;  // nothing is selected in the layer
  // With this copy the records are there too.
  const HostRows keys(backend, params.k, batch.num_rows());
  std::optional<HostRows> values;
  if (parts.values) values.emplace(backend, params.v, batch.num_rows());
  const int32_t b = geometry_.block_size;
  const int32_t kv_heads = geometry_.num_kv_heads;
  for (const SequenceRows& rows : batch.sequences) {
    const std::span<const int32_t> table = rows.table(params.kv.table);
    for (const int32_t block : table) {
      blocks_.resize(std::max(blocks_.size(), Index(block + 1, 0)));
    }
    const int32_t end = rows.position + rows.num_rows;
    const int32_t first = rows.position / b;
    if (parts.keys || parts.boxes || parts.values) {
      workers.Run(int64_t{(end + b - 1) / b - first} * kv_heads, [&](int64_t task, int) {
        KeepBlock(rows, params.kv.table, keys, values ? &*values : nullptr,
                  first + static_cast<int32_t>(task / kv_heads),
                  static_cast<int32_t>(task % kv_heads), parts.boxes);
      });
    }
    if (!parts.records) continue;
    for (int32_t ordinal = first; ordinal < end / b; ++ordinal) {
      const int32_t block = table[static_cast<size_t>(ordinal)];
      for (int32_t h = 0; h < kv_heads; ++h) {
        blocks_[Index(block, h)].record = backend.ReadRecord(geometry_, params.kv, block, h);
      }
    }
  }
}

KeyColumns RowBlocks::keys(int32_t ordinal) const {
  const int32_t seen = std::min(block_size(), num_keys - ordinal * block_size());
  return layer.keys(Physical(ordinal), kv_head, seen);
}

}  // namespace eta
