// RouteRows, MultiplyExperts and AddExperts: a row's k experts of E (eta-semantics.md, "Experts").

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// Writes the row's experts and their weights by rank.
void Choose(const float* logits, bool normalise, const ExpertChoice& choice, int64_t row) {
  const int32_t k = choice.per_row;
  std::vector<int32_t> order(static_cast<size_t>(choice.num_experts));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, ExpertOrder(logits));

  const double largest = logits[order.front()];
  const auto power = [&](int32_t expert) { return std::exp(double{logits[expert]} - largest); };
  double sum = 0.0;
  double chosen = 0.0;
  for (int32_t e = 0; e < choice.num_experts; ++e) sum += power(e);
  for (int32_t rank = 0; rank < k; ++rank) chosen += power(order[static_cast<size_t>(rank)]) / sum;
  for (int32_t rank = 0; rank < k; ++rank) {
    const int32_t expert = order[static_cast<size_t>(rank)];
    const double weight = power(expert) / sum;
    choice.experts[row * k + rank] = expert;
    choice.weights[row * k + rank] = static_cast<float>(normalise ? weight / chosen : weight);
  }
}

}  // namespace

void RouteRows(const BatchView& batch, const RouteRowsParams& params) {
  const ExpertChoice& choice = params.choice;
  const int32_t k = choice.per_row;
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    Choose(params.logits.row(row), params.normalise, choice, row);
  }
  int32_t place = 0;
  for (int32_t e = 0; e < choice.num_experts; ++e) {
    const int32_t first = place;
    for (int32_t i = 0; i < batch.num_rows() * k; ++i) {
      if (choice.experts[i] != e) continue;
      choice.rows[place] = i / k;
      choice.places[i] = place++;
    }
    choice.place_end[e] = place;
    if (params.rows_of_experts != nullptr) params.rows_of_experts[e] = place - first;
  }
}

void MultiplyExperts(const MultiplyExpertsParams& params) {
  const int64_t channels = params.out.cols;
  int32_t place = 0;
  for (int32_t e = 0; e < params.choice.num_experts; ++e) {
    for (; place < params.choice.place_end[e]; ++place) {
      const int64_t from = params.by_rows ? params.choice.rows[place] : place;
      MatMul({.x = params.x.Rows(from, 1),
              .weight = params.weights->matrices()[static_cast<size_t>(e)].get(),
              .out = params.out.Rows(place, 1),
              .accumulate = false});
      if (params.bias == nullptr) continue;
      float* out = params.out.row(place);
      for (int64_t i = 0; i < channels; ++i) out[i] += params.bias[e * channels + i];
    }
  }
}

void AddExperts(const BatchView& batch, const AddExpertsParams& params) {
  const int32_t k = params.choice.per_row;
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    float* out = params.out.row(row);
    for (int64_t i = 0; i < params.out.cols; ++i) {
      double sum = 0.0;
      for (int32_t rank = 0; rank < k; ++rank) {
        const int32_t at = row * k + rank;
        sum += double{params.choice.weights[at]} * params.x.row(params.choice.places[at])[i];
      }
      out[i] = static_cast<float>(out[i] + sum);
    }
  }
}

}  // namespace eta::reference
