#include "calibration/evaluation/rivals/big_bird.h"

namespace eta {
namespace {

class BigBird final : public Rival {
 public:
  BigBird(WindowLength window, int32_t stride)
      : window_(window), stride_(static_cast<size_t>(stride)) {}

  KeptParts needs() const override { return {}; }
  int64_t IndexBytes(const KvGeometry&, int32_t) const override { return 0; }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    AdmitWindow(window_, head.blocks, admitted);
    for (size_t j = 0; j < admitted.size(); j += stride_) admitted[j] = 1;
  }

 private:
  WindowLength window_;
  size_t stride_;
};

}  // namespace

std::shared_ptr<const Rival> MakeBigBird(WindowLength window, int32_t stride) {
  return std::make_shared<BigBird>(window, stride);
}

}  // namespace eta
