// What the heads of every layer attended and read, summed over decode rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/observer.h"
#include "service/telemetry/telemetry_series.h"

namespace eta {

// Of a model: L, HQ, HKV.
struct HeadShape {
  int32_t num_layers = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
};

class HeadTotals {
 public:
  // A row of a step, and whose totals it belongs to, all of one shape.
  struct Row {
    const DecodeRowReport* report = nullptr;
    HeadTotals* totals = nullptr;
  };

  explicit HeadTotals(const HeadShape& shape);

  static void Add(const StepReport& step, std::span<const Row> rows);

  // Of the same shape.
  void Add(const HeadTotals& other);
  // Adds them to `layers`, [L] or empty.
  void AddTo(std::vector<LayerTotals>& layers) const;

 private:
  // Sums of 32 bits, half the bytes of a step's work, go over into those of 64 before they might
  // pass their range.
  struct Sums {
    std::vector<uint32_t> recent;
    std::vector<int64_t> older;

    explicit Sums(size_t size) : recent(size), older(size) {}
    void Flush();
  };

  // False: not before a flush.
  bool Takes(int32_t kv_len);

  HeadShape shape_;
  int64_t recent_tokens_ = 0;  // T summed over the recent rows; no head's sum is larger
  int64_t older_tokens_ = 0;
  Sums attended_;  // [L, HQ]
  Sums read_;      // [L, HKV]
};

}  // namespace eta
