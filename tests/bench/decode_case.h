// One decode step's attention over a synthetic cache. Keys cluster by block, and the heads of a
// group agree on their queries as far as asked. The same case runs on any backend.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace eta::bench {

struct CaseShape {
  KvGeometry geometry;
  int32_t num_query_heads = 0;
  int32_t context = 0;     // T, the row's own token included
  int32_t copies = 1;      // copies of the layer's cache, so that reads come from memory
  float agreement = 0.7f;  // share of a query that a group's heads have in common, in [0, 1]
};

struct Densities {
  double head = 0.0;      // tokens attended / T
  double kv_union = 0.0;  // tokens read / T
};

class DecodeCase {
 public:
  DecodeCase(Backend& backend, const CaseShape& shape);

  // Sets the thresholds of all heads to one shared position within the range of each head's own
  // bounds.
  void SetThreshold(float threshold);
  AttentionOptions& options() { return sequence_.attention; }

  // Run the op on one copy of the layer, then Finish().
  void Select(int32_t copy);
  void Attend(int32_t copy);

  Densities densities() const;
  int64_t tokens_read() const;      // summed over KV heads
  int64_t tokens_attended() const;  // summed over query heads
  const std::vector<int32_t>& attended_counts() const { return tokens_attended_; }
  const std::vector<int32_t>& read_counts() const { return tokens_read_; }
  std::vector<float> output() const;
  const CaseShape& shape() const { return shape_; }

 private:
  KvLayerView Layer(int32_t copy) const;
  void FillCache();
  TensorView Rows(const Buffer& buffer, int64_t cols) const;

  Backend& backend_;
  CaseShape shape_;
  KvLayout layout_;
  int32_t num_blocks_ = 0;
  std::vector<int32_t> block_table_;
  std::vector<int32_t> token_ = {0};
  SequenceRows sequence_;
  BatchView batch_;
  std::unique_ptr<Buffer> tiles_, records_, queries_, thresholds_, out_;
  std::unique_ptr<Buffer> blocks_, heads_, counts_;
  std::vector<int32_t> tokens_attended_, tokens_read_;
};

// Sets the threshold at which the head density is nearest to `wanted`; whole blocks limit how near.
void SetHeadDensity(DecodeCase& attention, double wanted);

}  // namespace eta::bench
