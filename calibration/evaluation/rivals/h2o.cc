#include "calibration/evaluation/rivals/h2o.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "calibration/evaluation/rivals/block_estimate.h"
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

  void Watch(const RivalHead& head, RivalMemory& memory) const override {
    AddAttention(head, std::vector<uint8_t>(static_cast<size_t>(head.blocks.num_full()), 1),
                 memory);
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
    AddAttention(head, admitted, memory);
  }

 private:
  // Adds the softmax of the row's logits over the blocks that it attends to, and over the tail.
  void AddAttention(const RivalHead& head, std::span<const uint8_t> attended,
                    RivalMemory& memory) const {
    const int32_t keys = head.blocks.num_keys;
    const int32_t blocks = (keys + head.blocks.block_size() - 1) / head.blocks.block_size();
    memory.resize(std::max(memory.size(), static_cast<size_t>(blocks)));
    const ScoreGate gate = {options_.silu, options_.beta, head.threshold};
    std::vector<double> masses(static_cast<size_t>(blocks),
                               -std::numeric_limits<double>::infinity());
    double row = -std::numeric_limits<double>::infinity();
    for (int32_t j = 0; j < blocks; ++j) {
      const auto at = static_cast<size_t>(j);
      if (at < attended.size() && attended[at] == 0) continue;
      masses[at] = GatedLogMass(head.blocks.keys(j), head.q, head.softmax_scale, gate,
                                /*own=*/j + 1 == blocks);
      row = LogAdd(row, masses[at]);
    }
    for (size_t j = 0; j < masses.size(); ++j) {
      if (memory[j] != kEvicted) memory[j] += std::exp(masses[j] - row);
    }
  }

  H2oOptions options_;
};

}  // namespace

std::shared_ptr<const Rival> MakeH2o(const H2oOptions& options) {
  return std::make_shared<H2o>(options);
}

}  // namespace eta
