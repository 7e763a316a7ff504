#include "calibration/evaluation/rivals/kept_blocks.h"

#include <algorithm>
#include <cmath>

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

void KeptLayer::KeepKey(Block& block, int32_t offset, const float* key) const {
  const auto d = static_cast<size_t>(geometry_.head_dim);
  block.keys.resize(d * Stride());
  std::vector<float> rounded(d);
  RoundToCache(geometry_.dtype, {key, d}, rounded);
  for (size_t i = 0; i < d; ++i) {
    block.keys[i * Stride() + static_cast<size_t>(offset)] = rounded[i];
  }
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

void KeptLayer::Keep(const BatchView& batch, const AppendKvParams& params, Backend& backend,
                     const KeptParts& parts) {
  if (!parts.records && !parts.keys && !parts.boxes) return;
  // With this copy the records are there too.
  const HostRows keys(backend, params.k, batch.num_rows());
  const int32_t b = geometry_.block_size;
  for (const SequenceRows& rows : batch.sequences) {
    for (const int32_t block : rows.block_table) {
      blocks_.resize(std::max(blocks_.size(), Index(block + 1, 0)));
    }
    for (int32_t i = 0; i < rows.num_rows; ++i) {
      const int32_t position = rows.position + i;
      const int32_t block = rows.block_table[static_cast<size_t>(position / b)];
      const bool fills = (position + 1) % b == 0;
      for (int32_t h = 0; h < geometry_.num_kv_heads; ++h) {
        Block& kept = blocks_[Index(block, h)];
        if (parts.keys || parts.boxes) {
          KeepKey(kept, position % b,
                  keys.row(rows.row_begin + i).data() + int64_t{h} * geometry_.head_dim);
        }
        if (fills && parts.boxes) Box(kept);
        if (fills && parts.records)
          kept.record = backend.ReadRecord(geometry_, params.kv, block, h);
      }
    }
  }
}

KeyColumns RowBlocks::keys(int32_t ordinal) const {
  const int32_t seen = std::min(block_size(), num_keys - ordinal * block_size());
  return layer.keys(Physical(ordinal), kv_head, seen);
}

}  // namespace eta
