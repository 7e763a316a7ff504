#include "calibration/evaluation/rivals/h2o.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "calibration/evaluation/rivals/block_scores.h"

namespace eta {
namespace {

constexpr double kEvicted = -1.0;

class H2o final : public Rival {
 public:
  explicit H2o(const H2oOptions& options) : options_(options) {}

  KeptParts needs() const override { return {.keys = true}; }
  // A float32 sum per block and query head.
  int64_t IndexBytes(const KvGeometry&, int32_t group_size) const override {
    return group_size * static_cast<int64_t>(sizeof(float));
  }

  bool remembers() const override { return true; }

  // Without earlier rows nothing is heavy.
  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    AdmitWindow(options_.window, head.blocks, admitted);
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
    AdmitWindow(options_.window, head.blocks, admitted);
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
    std::ranges::stable_sort(open, [&](size_t a, size_t b) { return memory[a] > memory[b]; });
    for (size_t i = 0; i < open.size(); ++i) {
      if (i < budget) {
        admitted[open[i]] = 1;
      } else {
        memory[open[i]] = kEvicted;
      }
    }
    AddAttention({&head, 1}, admitted, memory);
  }

 private:
  // Adds the softmax of each row's logits over the blocks that it attends to, and over the tail.
  // `attended` [N]; empty: all. Rows take a block one after the other, while its keys are at hand.
  void AddAttention(std::span<const RivalHead> rows, std::span<const uint8_t> attended,
                    RivalMemory& memory) const {
    const auto blocks = [](const RivalHead& row) {
      return (row.blocks.num_keys + row.blocks.block_size() - 1) / row.blocks.block_size();
    };
    const int32_t most = blocks(rows.back());
    memory.resize(std::max(memory.size(), static_cast<size_t>(most)));
    std::vector<std::vector<double>> masses(
        rows.size(),
        std::vector<double>(static_cast<size_t>(most), -std::numeric_limits<double>::infinity()));
    for (int32_t j = 0; j < most; ++j) {
      const auto at = static_cast<size_t>(j);
      if (at < attended.size() && attended[at] == 0) continue;
      for (size_t i = 0; i < rows.size(); ++i) {
        const RivalHead& row = rows[i];
        const int32_t last = blocks(row) - 1;
        if (j > last) continue;
        const ScoreGate gate = {options_.silu, options_.beta, row.threshold};
        masses[i][at] = GatedLogMass(row.blocks.keys(j), row.q, row.softmax_scale, gate,
                                     /*own=*/j == last);
      }
    }
    for (const std::vector<double>& row : masses) AddSoftmax(row, memory);
  }

  static void AddSoftmax(std::vector<double> masses, RivalMemory& memory) {
    const double max = *std::ranges::max_element(masses);
    double sum = 0.0;
    for (double& mass : masses) sum += mass = std::exp(mass - max);
    for (size_t j = 0; j < masses.size(); ++j) {
      if (memory[j] != kEvicted) memory[j] += masses[j] / sum;
    }
  }

  H2oOptions options_;
};

}  // namespace

std::shared_ptr<const Rival> MakeH2o(const H2oOptions& options) {
  return std::make_shared<H2o>(options);
}

}  // namespace eta
