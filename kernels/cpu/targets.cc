#include "kernels/cpu/targets.h"

#include "hwy/highway.h"

namespace eta::cpu {

std::vector<int64_t> AttainableTargets() {
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  if (targets.empty()) targets.push_back(HWY_STATIC_TARGET);
  return targets;
}

void ForceTarget(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
}

std::string TargetName(int64_t target) {
  return hwy::TargetName(target);
}

}  // namespace eta::cpu
