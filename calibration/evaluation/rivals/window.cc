#include "calibration/evaluation/rivals/window.h"

#include <algorithm>
#include <cmath>

namespace eta {
namespace {

constexpr size_t kSinkKeys = 4;

class Window final : public Rival {
 public:
  explicit Window(WindowLength window) : window_(window) {}

  KeptParts needs() const override { return {}; }
  int64_t IndexBytes(const KvGeometry&, int32_t) const override { return 0; }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    AdmitWindow(window_, head.blocks, admitted);
  }

 private:
  WindowLength window_;
};

class BigBird final : public Rival {
 public:
  BigBird(WindowLength window, int32_t stride)
      : window_(window), stride_(static_cast<size_t>(stride)) {}

  KeptParts needs() const override { return {.keys = true, .values = true}; }
  bool by_key() const override { return true; }
  int64_t IndexBytes(const KvGeometry&, int32_t) const override { return 0; }

  void Admit(const RivalHead&, std::span<uint8_t> admitted) const override {
    AdmitLastKeys(window_, admitted);
    for (size_t t = 0; t < admitted.size(); t += stride_) admitted[t] = 1;
  }

 private:
  WindowLength window_;
  size_t stride_;
};

}  // namespace

int32_t WindowLength::FirstKey(int32_t num_keys) const {
  const double keys = length < 1.0 ? std::ceil(length * num_keys) : std::floor(length);
  return static_cast<int32_t>(num_keys - std::clamp(keys, 1.0, static_cast<double>(num_keys)));
}

void AdmitWindow(WindowLength window, const RowBlocks& blocks, std::span<uint8_t> admitted) {
  const int32_t first = window.FirstKey(blocks.num_keys) / blocks.block_size();
  const auto skipped = std::min(static_cast<size_t>(first), admitted.size());
  std::ranges::fill(admitted.subspan(skipped), uint8_t{1});
}

void AdmitLastKeys(WindowLength window, std::span<uint8_t> admitted) {
  const int32_t first = window.FirstKey(static_cast<int32_t>(admitted.size()));
  std::ranges::fill(admitted.subspan(static_cast<size_t>(first)), uint8_t{1});
  std::ranges::fill(admitted.first(std::min(kSinkKeys, admitted.size())), uint8_t{1});
}

std::shared_ptr<const Rival> MakeWindow(WindowLength window) {
  return std::make_shared<Window>(window);
}

std::shared_ptr<const Rival> MakeBigBird(WindowLength window, int32_t stride) {
  return std::make_shared<BigBird>(window, stride);
}

}  // namespace eta
