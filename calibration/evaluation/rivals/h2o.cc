#include "calibration/evaluation/rivals/h2o.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "calibration/evaluation/rivals/block_scores.h"

namespace eta {
namespace {

constexpr double kEvicted = -1.0;

// Keeps and evicts units: keys, or blocks.
class H2o final : public Rival {
 public:
  explicit H2o(const H2oOptions& options) : options_(options) {}

  KeptParts needs() const override { return {.keys = true, .values = options_.by_key}; }
  bool by_key() const override { return options_.by_key; }
  // A float32 sum per query head, of each block or of the keys that are not evicted: of a window
  // that is a number of keys, those beside it.
  int64_t IndexBytes(const KvGeometry& geometry, int32_t group_size) const override {
    const auto sum = group_size * static_cast<int64_t>(sizeof(float));
    if (!options_.by_key) return sum;
    const double length = options_.window.length;
    const double window = length < 1.0 ? length : 0.0;
    const double kept = window + (1.0 - window) * options_.share;
    return std::llround(kept * static_cast<double>(sum * geometry.block_size));
  }

  bool remembers() const override { return true; }

  // Without earlier rows nothing is heavy.
  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    if (options_.by_key) {
      AdmitLastKeys(options_.window, admitted);
    } else {
      AdmitWindow(options_.window, head.blocks, admitted);
    }
  }

  // Rows take a block one after the other, while its keys are at hand.
  void Watch(std::span<const RivalHead> rows, RivalMemory& memory) const override {
    const int32_t b = rows.back().blocks.block_size();
    const int32_t most = rows.back().blocks.num_keys;
    std::vector<std::vector<float>> logits;
    for (const RivalHead& row : rows) {
      logits.emplace_back(static_cast<size_t>(row.blocks.num_keys));
    }
    for (int32_t first = 0; first < most; first += b) {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (first < rows[i].blocks.num_keys) LookAt(rows[i], first / b, logits[i]);
      }
    }
    for (std::vector<float>& row : logits) AddAttention(row, b, memory);
  }

  bool WatchesLike(const Rival& other) const override {
    const auto* const h2o = dynamic_cast<const H2o*>(&other);
    return h2o != nullptr && h2o->options_.by_key == options_.by_key &&
           h2o->options_.gate.silu == options_.gate.silu &&
           h2o->options_.gate.beta == options_.gate.beta;
  }

  void AddWatched(const RivalMemory& later, RivalMemory& memory) const override {
    memory.resize(std::max(memory.size(), later.size()));
    for (size_t j = 0; j < later.size(); ++j) {
      if (memory[j] != kEvicted) memory[j] += later[j];
    }
  }

  void Look(const RivalHead& head, std::span<float> seen) const override {
    const int32_t b = head.blocks.block_size();
    for (int32_t j = 0; j * b < head.blocks.num_keys; ++j) LookAt(head, j, seen);
  }

  void AdmitAndRemember(const RivalHead& head, std::span<uint8_t> admitted,
                        RivalMemory& memory) const override {
    Admit(head, admitted);
    memory.resize(std::max(memory.size(), admitted.size()));
    const auto outside = static_cast<size_t>(std::ranges::count(admitted, 0));
    std::vector<size_t> open(outside);  // neither read already nor evicted
    size_t count = 0;
    for (size_t j = 0; j < admitted.size(); ++j) {
      if (admitted[j] == 0 && memory[j] != kEvicted) open[count++] = j;
    }
    open.resize(count);
    const auto budget =
        static_cast<size_t>(std::ceil(options_.share * static_cast<double>(outside)));
    for (const size_t unit : Lightest(open, budget, memory)) memory[unit] = kEvicted;
    for (const size_t unit : open) admitted[unit] = memory[unit] != kEvicted ? 1 : 0;
    AddAttended(head, admitted, memory);
  }

 private:
  static constexpr float kNone = std::numeric_limits<float>::lowest();
  // Fewer are sought one by one: after its first row a head has one or two to evict.
  static constexpr size_t kFew = 4;

  // The units beyond a budget, which it puts to the end of `open`.
  static std::span<const size_t> Lightest(std::vector<size_t>& open, size_t budget,
                                          const RivalMemory& memory) {
    const auto heavier = [&memory](size_t a, size_t b) {
      return memory[a] > memory[b] || (memory[a] == memory[b] && a < b);
    };
    const size_t kept = std::min(budget, open.size());
    const size_t beyond = open.size() - kept;
    if (beyond > kFew) {
      std::nth_element(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(kept), open.end(),
                       heavier);
    } else {
      for (auto end = open.end(); end - open.begin() > static_cast<std::ptrdiff_t>(kept); --end) {
        std::iter_swap(std::max_element(open.begin(), end, heavier), end - 1);
      }
    }
    return std::span(open).last(beyond);
  }

  // The logits of a block's keys, to their places in the row's.
  void LookAt(const RivalHead& head, int32_t ordinal, std::span<float> logits) const {
    BlockLogits(head, options_.gate, ordinal,
                logits.subspan(static_cast<size_t>(ordinal * head.blocks.block_size())));
  }

  // Adds the softmax of the row's logits over what it attends to, by block over the tail too.
  void AddAttended(const RivalHead& head, std::span<const uint8_t> attended,
                   RivalMemory& memory) const {
    const auto b = static_cast<size_t>(head.blocks.block_size());
    std::vector<float> logits(head.seen.begin(), head.seen.end());
    if (options_.by_key) {
      std::ranges::transform(head.seen, attended, logits.begin(),
                             [](float logit, uint8_t is) { return is != 0 ? logit : kNone; });
    } else {
      for (size_t j = 0; j < attended.size(); ++j) {
        if (attended[j] == 0) std::ranges::fill(std::span(logits).subspan(j * b, b), kNone);
      }
    }
    AddAttention(logits, head.blocks.block_size(), memory);
  }

  // Adds the softmax of a row's logits, which it writes over, to the sums of its units.
  void AddAttention(std::span<float> logits, int32_t block_size, RivalMemory& memory) const {
    const auto unit = static_cast<size_t>(options_.by_key ? 1 : block_size);
    const size_t units = (logits.size() + unit - 1) / unit;
    memory.resize(std::max(memory.size(), units));
    const double share = 1.0 / Exponentials(logits, Largest(logits));
    if (options_.by_key) {
      std::ranges::transform(memory, logits, memory.begin(), [share](double mass, float weight) {
        return mass == kEvicted ? kEvicted : mass + share * static_cast<double>(weight);
      });
      return;
    }
    for (size_t j = 0; j < units; ++j) {
      if (memory[j] == kEvicted) continue;
      double mass = 0.0;
      for (const float weight :
           logits.subspan(j * unit, std::min(unit, logits.size() - j * unit))) {
        mass += static_cast<double>(weight);
      }
      memory[j] += share * mass;
    }
  }

  H2oOptions options_;
};

}  // namespace

std::shared_ptr<const Rival> MakeH2o(const H2oOptions& options) {
  return std::make_shared<H2o>(options);
}

}  // namespace eta
