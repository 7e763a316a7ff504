#include "calibration/evaluation/rivals/oracle.h"

#include <limits>
#include <vector>

#include "calibration/evaluation/rivals/block_scores.h"
#include "engine/model/kv_cache.h"
#include "kernels/block_bound.h"

namespace eta {
namespace {

class Oracle final : public Rival {
 public:
  explicit Oracle(float c) : c_(c) {}

  KeptParts needs() const override { return {.keys = true}; }
  int64_t IndexBytes(const KvGeometry& geometry, int32_t) const override {
    return geometry.block_size * KvKeyBytes(geometry);
  }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    const auto full = static_cast<int32_t>(admitted.size());
    std::vector<double> masses(admitted.size());
    double row = -std::numeric_limits<double>::infinity();
    for (int32_t j = 0; j < full; ++j) {
      masses[static_cast<size_t>(j)] = LogMass(head.blocks.keys(j), head.q, head.softmax_scale);
      row = LogAdd(row, masses[static_cast<size_t>(j)]);
    }
    if (full * head.blocks.block_size() < head.blocks.num_keys) {
      row = LogAdd(row, LogMass(head.blocks.keys(full), head.q, head.softmax_scale));
    }
    for (size_t j = 0; j < masses.size(); ++j) {
      if (masses[j] - row >= c_) admitted[j] = 1;
    }
  }

 private:
  float c_;
};

}  // namespace

std::shared_ptr<const Rival> MakeOracle(float c) {
  return std::make_shared<Oracle>(c);
}

}  // namespace eta
