#include "calibration/evaluation/rivals/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "calibration/evaluation/rivals/block_estimate.h"

namespace eta {
namespace {

// log-sum-exp of the scores of `keys` [n, d].
double LogMass(std::span<const float> keys, std::span<const float> q, float scale) {
  const size_t d = q.size();
  std::vector<float> scores(keys.size() / d);
  for (size_t t = 0; t < scores.size(); ++t) {
    const float* key = keys.data() + t * d;
    // Eight sums, which compilers may keep side by side.
    float sums[8] = {};
    size_t i = 0;
    for (; i + 8 <= d; i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) sums[lane] += q[i + lane] * key[i + lane];
    }
    for (; i < d; ++i) sums[0] += q[i] * key[i];
    float sum = 0.0f;
    for (const float part : sums) sum += part;
    scores[t] = scale * sum;
  }
  const float max = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const float score : scores) sum += std::exp(score - max);
  return max + std::log(sum);
}

class Oracle final : public Rival {
 public:
  explicit Oracle(float c) : c_(c) {}

  KeptParts needs() const override { return {.keys = true}; }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    const auto full = static_cast<int32_t>(admitted.size());
    std::vector<double> masses(admitted.size());
    double row = -std::numeric_limits<double>::infinity();
    for (int32_t j = 0; j < full; ++j) {
      masses[static_cast<size_t>(j)] = LogMass(head.blocks.keys(j), head.q, head.softmax_scale);
      row = LogAdd(row, masses[static_cast<size_t>(j)]);
    }
    if (full * head.blocks.block_size() < head.blocks.num_keys) {
      row = LogAdd(row, LogMass(head.blocks.keys(full), head.q, head.softmax_scale));
    }
    for (size_t j = 0; j < masses.size(); ++j) {
      if (masses[j] - row >= c_) admitted[j] = 1;
    }
  }

 private:
  float c_;
};

}  // namespace

std::shared_ptr<const Rival> MakeOracle(float c) {
  return std::make_shared<Oracle>(c);
}

}  // namespace eta
