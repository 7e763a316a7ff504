// Counts of observations by bucket, as a Prometheus histogram shows them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace eta {

// Upper bounds, ascending, each inclusive; above the last one there is a bucket without a bound.
struct Buckets {
  static constexpr size_t kMost = 24;

  Buckets(std::initializer_list<double> bounds) : upper(bounds) {}

  std::vector<double> upper;
};

class Histogram {
 public:
  // `buckets` must outlive it and its copies.
  explicit Histogram(const Buckets& buckets) : buckets_(&buckets) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(buckets_->upper.begin(), buckets_->upper.end(), value);
    ++counts_[static_cast<size_t>(bucket - buckets_->upper.begin())];
    ++count_;
    sum_ += value;
  }

  // Of the same buckets.
  void Add(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
  }

  const Buckets& buckets() const { return *buckets_; }
  int64_t InBucket(size_t bucket) const { return counts_[bucket]; }  // not cumulative
  int64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  const Buckets* buckets_;
  std::array<int64_t, Buckets::kMost> counts_{};
  int64_t count_ = 0;
  double sum_ = 0.0;
};

// The bounds of this server's histograms.
const Buckets& FirstTokenBuckets();   // seconds; vLLM's, so that both can be compared
const Buckets& InterTokenBuckets();   // seconds
const Buckets& RequestBuckets();      // seconds
const Buckets& StepBuckets();         // seconds
const Buckets& CalibrationBuckets();  // seconds
const Buckets& CompileBuckets();      // seconds
const Buckets& MaskBuckets();         // seconds
const Buckets& RatioBuckets();        // 0 to 1
const Buckets& MassBuckets();         // 0 to 1, most of them near 1
const Buckets& TokenBuckets();        // tokens of a request: powers of two
const Buckets& BatchBuckets();        // sequences or rows of a step: powers of two

}  // namespace eta
