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
  GatedLogits(keys, head.q, head.softmax_scale, {gate.silu, gate.beta, head.threshold},
              /*own=*/first + static_cast<int32_t>(keys.count) > own, logits);
  if (!gate.silu || head.tempered.empty()) return;
  for (size_t i = 0; i < keys.count; ++i) {
    const auto t = static_cast<size_t>(first) + i;
    const bool tempered =
        t / 64 < head.tempered.size() && (head.tempered[t / 64] >> (t % 64) & 1) != 0;
    if (tempered && static_cast<int32_t>(t) != own) logits[i] = 0.0f;
  }
}

std::vector<float> AttendToKeys(const RivalHead& head, const KeyGate& gate, bool floor,
                                std::span<const uint8_t> admitted) {
  const auto b = static_cast<size_t>(head.blocks.block_size());
  std::vector<float> weights(admitted.size(), std::numeric_limits<float>::lowest());
  size_t pruned = 0;
  const auto of_block = [b](auto keys, size_t first) {
    return keys.subspan(first, std::min(b, keys.size() - first));
  };
  const auto set_others = [](std::span<float> block, std::span<const uint8_t> attended, float to) {
    std::ranges::transform(block, attended, block.begin(),
                           [to](float weight, uint8_t is) { return is != 0 ? weight : to; });
  };
  for (size_t first = 0; first < weights.size(); first += b) {
    const auto block = of_block(std::span(weights), first);
    const auto attended = of_block(admitted, first);
    const auto count = static_cast<size_t>(std::ranges::count(attended, 1));
    pruned += block.size() - count;
    if (count == 0) continue;
    BlockLogits(head, gate, static_cast<int32_t>(first / b), block);
    set_others(block, attended, std::numeric_limits<float>::lowest());
  }
  float max = Largest(weights);
  if (floor && pruned > 0) max = std::max(max, 0.0f);
  const float pruned_weight = floor ? std::exp(-max) : 0.0f;
  const double sum = Exponentials(weights, max) + static_cast<double>(pruned) * pruned_weight;
  std::vector<float> out(head.q.size());
  for (size_t first = 0; first < weights.size(); first += b) {
    const auto block = of_block(std::span(weights), first);
    const auto attended = of_block(admitted, first);
    if (!floor && std::ranges::find(attended, 1) == attended.end()) continue;
    set_others(block, attended, pruned_weight);
    AddWeighted(head.blocks.values(static_cast<int32_t>(first / b)), block, out);
  }
  for (float& x : out) x = static_cast<float>(x / sum);
  return out;
}

}  // namespace eta
