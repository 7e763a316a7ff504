#include "calibration/evaluation/rivals/top_k.h"

#include <algorithm>
#include <cmath>

#include "engine/model/kv_cache.h"
#include "kernels/block_bound.h"

namespace eta {
namespace {

class TopK final : public Rival {
 public:
  explicit TopK(double share) : share_(share) {}

  KeptParts needs() const override { return {.records = true}; }
  int64_t IndexBytes(const KvGeometry& geometry, int32_t) const override {
    return IndexRecordBytes(geometry);
  }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    const int32_t others = head.blocks.block_size() - 1;
    std::vector<float> promised(admitted.size());
    for (size_t j = 0; j < admitted.size(); ++j) {
      if (admitted[j] != 0) continue;
      const RecordView record = head.blocks.record(static_cast<int32_t>(j)).View();
      promised[j] = record.outlier.empty()
                        ? BoundOf(record, head.q, head.softmax_scale).At(head.options.z)
                        : static_cast<float>(BlockMass<double>(
                              ScoresOf(record, head.q, head.softmax_scale), others));
    }
    AdmitLargest(promised, share_, admitted);
  }

 private:
  double share_;
};

}  // namespace

std::shared_ptr<const Rival> MakeTopK(double share) {
  return std::make_shared<TopK>(share);
}

void AdmitLargest(std::span<const float> values, double share, std::span<uint8_t> admitted) {
  std::vector<size_t> open;
  for (size_t j = 0; j < admitted.size(); ++j) {
    if (admitted[j] == 0) open.push_back(j);
  }
  const auto wanted = static_cast<size_t>(std::ceil(share * static_cast<double>(open.size())));
  const size_t count = std::min(wanted, open.size());
  const auto before = [&](size_t a, size_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  };
  std::partial_sort(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(count), open.end(),
                    before);
  for (size_t i = 0; i < count; ++i) admitted[open[i]] = 1;
}

}  // namespace eta
