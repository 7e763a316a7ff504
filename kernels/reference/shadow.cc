// MeasureShadow tells, for chosen decode rows and per query head, what reading less cost: the share
// of full attention's softmax on the keys that the head attended to (mass [rows, HQ]), and the
// distance of its output from full attention's (error [rows, HQ]; eta-semantics.md, "What is
// counted").

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// log-sum-exp of the gated logits of the row's keys at `positions`, and of the head's sink: every
// head attends to that.
double LogMass(const AttentionParams& params, const Row& row, int32_t query_head,
               const std::vector<int32_t>& positions) {
  const KvPages pages(params.geometry, params.kv);
  const int32_t kv_head = query_head / (params.num_query_heads / params.geometry.num_kv_heads);
  const float* q = params.q.row(row.index) + int64_t{query_head} * params.geometry.head_dim;
  const double threshold = static_cast<double>(params.thresholds.row(row.index)[query_head]) -
                           row.sequence.attention.offset;
  std::vector<double> logits;
  double max = -HUGE_VAL;
  if (params.sinks != nullptr) {
    max = params.sinks[query_head];
    logits.push_back(max);
  }
  for (const int32_t t : positions) {
    const double score =
        Score(pages, q, pages.Slot(row.sequence, t), kv_head, params.softmax_scale);
    logits.push_back(GatedLogit(params, row, score, threshold, t));
    max = std::max(max, logits.back());
  }
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

// |got - want| / |want|
double RelativeDistance(const std::vector<float>& got, const std::vector<float>& want) {
  double distance = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - want[i];
    distance += difference * difference;
    norm += static_cast<double>(want[i]) * want[i];
  }
  return norm > 0.0 ? std::sqrt(distance / norm) : 0.0;
}

}  // namespace

void MeasureShadow(const BatchView& batch, const ShadowParams& params) {
  const AttentionParams& attention = params.attention;
  const auto d = static_cast<size_t>(attention.geometry.head_dim);
  size_t next = 0;
  ForEachRow(batch, RowKind::kDecode, [&](const Row& row) {
    if (next == params.rows.size() || params.rows[next] != row.index) return;
    std::vector<int32_t> all(static_cast<size_t>(row.num_keys()));
    std::iota(all.begin(), all.end(), 0);
    for (int32_t h = 0; h < attention.num_query_heads; ++h) {
      const std::vector<int32_t> admitted = AdmittedPositions(attention, row, h);
      const size_t at = next * static_cast<size_t>(attention.num_query_heads) + h;
      params.mass[at] = admitted.empty() && attention.sinks == nullptr
                            ? 0.0f
                            : static_cast<float>(std::exp(LogMass(attention, row, h, admitted) -
                                                          LogMass(attention, row, h, all)));
      const bool floor = row.sequence.attention.uniform_floor && attention.gate == Gate::kSilu;
      std::vector<float> got(d);
      std::vector<float> want(d);
      Attend(attention, row, h, admitted, floor, got.data());
      Attend(attention, row, h, all, /*floor=*/false, want.data());
      params.error[at] = static_cast<float>(RelativeDistance(got, want));
    }
    ++next;
  });
}

}  // namespace eta::reference
