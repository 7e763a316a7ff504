// The record of kind outlier (eta-semantics.md, "Index kinds"): of a block's b keys the one that
// stands out in the metric of scores, and mean and deviation [d] of the others. A mean and a
// diagonal deviation alone cannot see one key among 64.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/quantize.h"
#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// The keys of a block and KV head, [b][d].
using Keys = std::vector<std::vector<double>>;

// The mean of all keys but `left_out` (-1: of all); zero of none.
std::vector<double> Mean(const Keys& keys, int32_t left_out) {
  std::vector<double> mean(keys.front().size());
  const auto count = static_cast<double>(keys.size()) - (left_out >= 0 ? 1.0 : 0.0);
  if (count == 0.0) return mean;
  for (size_t t = 0; t < keys.size(); ++t) {
    if (static_cast<int32_t>(t) == left_out) continue;
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += keys[t][i] / count;
  }
  return mean;
}

// (key - mean)^T C (key - mean)
double Distance(const std::vector<double>& key, const std::vector<double>& mean,
                const float* metric) {
  const size_t d = key.size();
  double distance = 0.0;
  for (size_t i = 0; i < d; ++i) {
    double along = metric == nullptr ? key[i] - mean[i] : 0.0;
    for (size_t j = 0; metric != nullptr && j < d; ++j) {
      along += static_cast<double>(metric[i * d + j]) * (key[j] - mean[j]);
    }
    distance += along * (key[i] - mean[i]);
  }
  return distance;
}

int32_t Outlier(const Keys& keys, const float* metric) {
  const std::vector<double> mean = Mean(keys, -1);
  int32_t outlier = 0;
  double largest = Distance(keys[0], mean, metric);
  for (size_t t = 1; t < keys.size(); ++t) {
    const double distance = Distance(keys[t], mean, metric);
    if (distance > largest) {
      largest = distance;
      outlier = static_cast<int32_t>(t);
    }
  }
  return outlier;
}

// Deviation of coordinate i of the keys but the outlier from their mean: by sub-blocks of `part`.
double DeviationWithout(const Keys& keys, int32_t outlier, size_t i, double mean, size_t part) {
  double largest = 0.0;
  for (size_t begin = 0; begin < keys.size(); begin += part) {
    double sum = 0.0;
    for (size_t t = begin; t < begin + part; ++t) {
      if (static_cast<int32_t>(t) == outlier) continue;
      sum += (keys[t][i] - mean) * (keys[t][i] - mean);
    }
    largest = std::max(largest, std::sqrt(sum / static_cast<double>(part)));
  }
  return largest;
}

// Rounds mu, sigma and the outlier to 8 bits, about the centre [d].
void Narrow(const Record& record, const float* centre, size_t d) {
  std::vector<float> mu(record.mu, record.mu + d);
  std::vector<float> outlier(record.outlier, record.outlier + d);
  for (size_t i = 0; centre != nullptr && i < d; ++i) {
    mu[i] -= centre[i];
    outlier[i] -= centre[i];
  }
  std::vector<int8_t> mu8(d);
  std::vector<uint8_t> sigma8(d);
  std::vector<int8_t> outlier8(d);
  const OutlierSteps steps =
      QuantizeOutlierRecord(mu, {record.sigma, d}, outlier, mu8, sigma8, outlier8);
  for (size_t i = 0; i < d; ++i) {
    const float middle = centre != nullptr ? centre[i] : 0.0f;
    record.mu[i] = middle + steps.step * static_cast<float>(mu8[i]);
    record.sigma[i] = steps.step * static_cast<float>(sigma8[i]);
    record.outlier[i] = middle + steps.outlier_step * static_cast<float>(outlier8[i]);
  }
  *record.step = steps.step;
  *record.outlier_step = steps.outlier_step;
}

}  // namespace

void WriteOutlierRecord(const KvPages& pages, const KvLayerView& kv, int32_t block,
                        int32_t kv_head) {
  const KvGeometry& geometry = pages.geometry();
  const auto b = static_cast<size_t>(geometry.block_size);
  const auto d = static_cast<size_t>(geometry.head_dim);
  const auto head = static_cast<size_t>(kv_head);
  const int64_t first_slot = static_cast<int64_t>(block) * geometry.block_size;
  Keys keys(b, std::vector<double>(d));
  for (size_t t = 0; t < b; ++t) {
    for (size_t i = 0; i < d; ++i) {
      keys[t][i] =
          pages.Key(first_slot + static_cast<int64_t>(t), kv_head, static_cast<int32_t>(i));
    }
  }
  const int32_t outlier =
      Outlier(keys, kv.index_metric == nullptr ? nullptr : kv.index_metric + head * d * d);
  const std::vector<double> mean = Mean(keys, outlier);
  const size_t part = geometry.sub_block > 0 ? static_cast<size_t>(geometry.sub_block) : b;
  const Record record = pages.RecordOf(block, kv_head);
  for (size_t i = 0; i < d; ++i) {
    record.mu[i] = static_cast<float>(mean[i]);
    record.sigma[i] = static_cast<float>(DeviationWithout(keys, outlier, i, mean[i], part));
    record.outlier[i] = static_cast<float>(keys[static_cast<size_t>(outlier)][i]);
  }
  *record.step = 0.0f;
  *record.outlier_step = 0.0f;
  if (geometry.index_dtype != DType::kInt8) return;
  Narrow(record, kv.index_centre == nullptr ? nullptr : kv.index_centre + head * d, d);
}

}  // namespace eta::reference
