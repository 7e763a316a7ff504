#include "calibration/evaluation/rivals/window.h"

#include <algorithm>
#include <cmath>

namespace eta {
namespace {

class Window final : public Rival {
 public:
  Window(WindowLength window, int32_t stride)
      : window_(window), stride_(static_cast<size_t>(stride)) {}

  KeptParts needs() const override { return {}; }
  int64_t IndexBytes(const KvGeometry&, int32_t) const override { return 0; }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    AdmitWindow(window_, head.blocks, admitted);
    if (stride_ == 0) return;
    for (size_t j = 0; j < admitted.size(); j += stride_) admitted[j] = 1;
  }

 private:
  WindowLength window_;
  size_t stride_;
};

}  // namespace

int32_t WindowLength::FirstBlock(int32_t num_keys, int32_t block_size) const {
  const double keys = length < 1.0 ? std::ceil(length * num_keys) : std::floor(length);
  const double outside = num_keys - std::clamp(keys, 1.0, static_cast<double>(num_keys));
  return static_cast<int32_t>(outside) / block_size;
}

void AdmitWindow(WindowLength window, const RowBlocks& blocks, std::span<uint8_t> admitted) {
  const int32_t first = window.FirstBlock(blocks.num_keys, blocks.block_size());
  const auto skipped = std::min(static_cast<size_t>(first), admitted.size());
  std::ranges::fill(admitted.subspan(skipped), uint8_t{1});
}

std::shared_ptr<const Rival> MakeWindow(WindowLength window, int32_t stride) {
  return std::make_shared<Window>(window, stride);
}

}  // namespace eta
