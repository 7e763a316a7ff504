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

  void Watch(std::span<const RivalHead> rows, RivalMemory& memory) const override {
    AddAttention(rows, {}, memory);
  }

  void AddWatched(const RivalMemory& later, RivalMemory& memory) const override {
    memory.resize(std::max(memory.size(), later.size()));
    for (size_t j = 0; j < later.size(); ++j) {
      if (memory[j] != kEvicted) memory[j] += later[j];
    }
  }

  void AdmitAndRemember(const RivalHead& head, std::span<uint8_t> admitted,
                        RivalMemory& memory) const override {
    Admit(head, admitted);
    memory.resize(std::max(memory.size(), admitted.size()));
    std::vector<size_t> open;  // neither read already nor evicted
    size_t outside = 0;
    for (size_t j = 0; j < admitted.size(); ++j) {
      if (admitted[j] != 0) continue;
      ++outside;
      if (memory[j] != kEvicted) open.push_back(j);
    }
    const auto budget =
        static_cast<size_t>(std::ceil(options_.share * static_cast<double>(outside)));
    const auto kept = open.begin() + static_cast<std::ptrdiff_t>(std::min(budget, open.size()));
    std::nth_element(open.begin(), kept, open.end(), [&](size_t a, size_t b) {
      return memory[a] > memory[b] || (memory[a] == memory[b] && a < b);
    });
    for (auto unit = open.begin(); unit != kept; ++unit) admitted[*unit] = 1;
    for (auto unit = kept; unit != open.end(); ++unit) memory[*unit] = kEvicted;
    AddAttention({&head, 1}, admitted, memory);
  }

 private:
  size_t UnitOf(int32_t key, int32_t block_size) const {
    return static_cast<size_t>(options_.by_key ? key : key / block_size);
  }

  // Adds the softmax of each row's logits over what it attends to, `attended`, and by block over
  // the tail; empty: over all. Rows take a block one after the other, while its keys are at hand.
  void AddAttention(std::span<const RivalHead> rows, std::span<const uint8_t> attended,
                    RivalMemory& memory) const {
    const int32_t b = rows.back().blocks.block_size();
    const int32_t most = rows.back().blocks.num_keys;
    const auto attends = [&](int32_t key) {
      const size_t unit = UnitOf(key, b);
      return unit >= attended.size() || attended[unit] != 0;
    };
    memory.resize(std::max(memory.size(), UnitOf(most - 1, b) + 1));
    std::vector<std::vector<float>> logits(rows.size(),
                                           std::vector<float>(static_cast<size_t>(most), kNone));
    for (int32_t first = 0; first < most; first += b) {
      bool any = false;
      for (int32_t t = first; t < std::min(most, first + b); ++t) any = any || attends(t);
      for (size_t i = 0; any && i < rows.size(); ++i) {
        if (first >= rows[i].blocks.num_keys) continue;
        BlockLogits(rows[i], options_.gate, first / b,
                    std::span(logits[i]).subspan(static_cast<size_t>(first)));
      }
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = std::span(logits[i]).first(static_cast<size_t>(rows[i].blocks.num_keys));
      for (size_t t = 0; t < row.size(); ++t) {
        if (!attends(static_cast<int32_t>(t))) row[t] = kNone;
      }
      const double sum = Exponentials(row, *std::ranges::max_element(row));
      for (size_t t = 0; t < row.size(); ++t) {
        double& mass = memory[UnitOf(static_cast<int32_t>(t), b)];
        if (mass != kEvicted) mass += static_cast<double>(row[t]) / sum;
      }
    }
  }

  static constexpr float kNone = std::numeric_limits<float>::lowest();

  H2oOptions options_;
};

}  // namespace

std::shared_ptr<const Rival> MakeH2o(const H2oOptions& options) {
  return std::make_shared<H2o>(options);
}

}  // namespace eta
