#include "calibration/evaluation/rivals/quest.h"

#include <vector>

#include "calibration/evaluation/rivals/top_k.h"

namespace eta {
namespace {

class Quest final : public Rival {
 public:
  Quest(double share, int32_t dense_layers) : share_(share), dense_layers_(dense_layers) {}

  KeptParts needs() const override { return {.boxes = true}; }
  int32_t dense_layers() const override { return dense_layers_; }
  int64_t IndexBytes(const KvGeometry& geometry, int32_t) const override {
    return 2 * geometry.head_dim * static_cast<int64_t>(SizeOf(geometry.dtype));
  }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    std::vector<float> bounds(admitted.size());
    for (size_t j = 0; j < admitted.size(); ++j) {
      const auto block = static_cast<int32_t>(j);
      bounds[j] = BoxBound(head.q, head.blocks.low(block), head.blocks.high(block));
    }
    AdmitLargest(bounds, share_, admitted);
  }

 private:
  double share_;
  int32_t dense_layers_;
};

}  // namespace

std::shared_ptr<const Rival> MakeQuest(double share, int32_t dense_layers) {
  return std::make_shared<Quest>(share, dense_layers);
}

}  // namespace eta
