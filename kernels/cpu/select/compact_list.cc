// Turns the masks of a row's blocks into the list that attention reads (eta-semantics.md,
// "Selection", steps 3 and 5).

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/compact_list.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/select/select_group.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

int32_t CompactOnTarget(const SelectGroup& group, size_t num_heads, int32_t* attended) {
  const hn::ScalableTag<uint32_t> du;
  const auto lanes = static_cast<int32_t>(hn::Lanes(du));
  int32_t count = 0;
  int32_t i = 0;
  for (; i + lanes <= group.full_blocks; i += lanes) {
    const auto masks = hn::LoadU(du, group.heads + i);
    const auto listed = hn::Ne(masks, hn::Zero(du));
    hn::CompressBlendedStore(hn::Iota(du, static_cast<uint32_t>(i)), listed, du,
                             group.blocks + count);
    count += static_cast<int32_t>(hn::CompressBlendedStore(masks, listed, du, group.heads + count));
  }
  for (; i < group.full_blocks; ++i) {
    const uint32_t mask = group.heads[i];
    if (mask == 0) continue;
    group.blocks[count] = static_cast<uint32_t>(i);
    group.heads[count++] = mask;
  }
  alignas(64) uint32_t totals[kMaxGroup + 16];
  for (size_t head = 0; head < num_heads; head += hn::Lanes(du)) {
    const auto shift = hn::Iota(du, static_cast<uint32_t>(head));
    auto total = hn::Zero(du);
    for (int32_t n = 0; n < count; ++n) {
      total = hn::Add(total, hn::And(hn::Shr(hn::Set(du, group.heads[n]), shift), hn::Set(du, 1)));
    }
    hn::StoreU(total, du, totals + head);
  }
  for (size_t h = 0; h < num_heads; ++h) attended[h] = static_cast<int32_t>(totals[h]);
  if (group.sequence->attention.shared_reads) {
    std::fill_n(group.heads, count, AllHeads(num_heads));
  }
  return count;
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(CompactOnTarget);

int32_t CompactList(const SelectGroup& group, size_t num_heads, int32_t* attended) {
  return HWY_DYNAMIC_DISPATCH(CompactOnTarget)(group, num_heads, attended);
}

}  // namespace eta::cpu
#endif
