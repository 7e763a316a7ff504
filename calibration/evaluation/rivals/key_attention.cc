#include "calibration/evaluation/rivals/key_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "calibration/evaluation/rivals/block_scores.h"

namespace eta {

void BlockLogits(const RivalHead& head, const KeyGate& gate, int32_t ordinal,
                 std::span<float> logits) {
  const KeyColumns keys = head.blocks.keys(ordinal);
  const int32_t first = ordinal * head.blocks.block_size();
  const int32_t own = head.blocks.num_keys - 1;
  const std::vector<float> of_keys =
      GatedLogits(keys, head.q, head.softmax_scale, {gate.silu, gate.beta, head.threshold},
                  /*own=*/first + static_cast<int32_t>(keys.count) > own);
  std::ranges::copy(of_keys, logits.begin());
  if (!gate.silu) return;
  for (size_t i = 0; i < of_keys.size(); ++i) {
    const auto t = static_cast<size_t>(first) + i;
    const bool tempered =
        t / 64 < head.tempered.size() && (head.tempered[t / 64] >> (t % 64) & 1) != 0;
    if (tempered && static_cast<int32_t>(t) != own) logits[i] = 0.0f;
  }
}

std::vector<float> AttendToKeys(const RivalHead& head, const KeyGate& gate, bool floor,
                                std::span<const uint8_t> admitted) {
  const auto b = static_cast<size_t>(head.blocks.block_size());
  std::vector<float> weights(admitted.size());
  int64_t pruned = 0;
  for (size_t first = 0; first < weights.size(); first += b) {
    const auto block = std::span(weights).subspan(first, std::min(b, weights.size() - first));
    BlockLogits(head, gate, static_cast<int32_t>(first / b), block);
    for (size_t i = 0; i < block.size(); ++i) {
      if (admitted[first + i] != 0) continue;
      block[i] = std::numeric_limits<float>::lowest();
      ++pruned;
    }
  }
  float max = *std::ranges::max_element(weights);
  if (floor && pruned > 0) max = std::max(max, 0.0f);
  const float pruned_weight = floor ? std::exp(-max) : 0.0f;
  const double sum = Exponentials(weights, max) + static_cast<double>(pruned) * pruned_weight;
  std::vector<float> out(head.q.size());
  for (size_t t = 0; t < weights.size(); ++t) {
    const float weight = admitted[t] != 0 ? weights[t] : pruned_weight;
    if (weight == 0.0f) continue;
    const float* value =
        head.blocks.values(static_cast<int32_t>(t / b)).data() + t % b * out.size();
    for (size_t i = 0; i < out.size(); ++i) out[i] += weight * value[i];
  }
  for (float& x : out) x = static_cast<float>(x / sum);
  return out;
}

}  // namespace eta
