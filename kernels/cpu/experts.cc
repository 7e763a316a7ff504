// RouteRows, MultiplyExperts and AddExperts: a row's k experts of E (eta-semantics.md, "Experts").
// The rows of an expert lie side by side, so its weights are read once for all of them, and the
// products of all experts are one set of tasks.

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"

namespace eta::cpu {
namespace {

constexpr int64_t kRowsOfTask = 4;
constexpr int64_t kColumns = 512;  // that are summed at a time

// Calls task(i) for i in [0, rows).
template <class Task>
void ForEach(const Context& context, int64_t rows, const Task& task) {
  context.workers.Run((rows + kRowsOfTask - 1) / kRowsOfTask, [&](int64_t index, int) {
    const int64_t end = std::min(rows, (index + 1) * kRowsOfTask);
    for (int64_t row = index * kRowsOfTask; row < end; ++row) task(row);
  });
}

template <class Task>
void ForEachRow(const Context& context, const Task& task) {
  ForEach(context, context.batch.num_rows(), task);
}

// Writes the row's experts and their weights by rank.
void Choose(const float* logits, bool normalise, const ExpertChoice& choice, int64_t row) {
  thread_local std::vector<int32_t> order;
  order.resize(static_cast<size_t>(choice.num_experts));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + choice.per_row, order.end(),
                    ExpertOrder(logits));
  const float largest = logits[order.front()];
  float sum = 0.0f;
  for (int32_t e = 0; e < choice.num_experts; ++e) sum += std::exp(logits[e] - largest);
  int32_t* experts = choice.experts + row * choice.per_row;
  float* weights = choice.weights + row * choice.per_row;
  float chosen = 0.0f;
  for (int32_t rank = 0; rank < choice.per_row; ++rank) {
    experts[rank] = order[static_cast<size_t>(rank)];
    weights[rank] = std::exp(logits[experts[rank]] - largest) / sum;
    chosen += weights[rank];
  }
  if (!normalise) return;
  for (int32_t rank = 0; rank < choice.per_row; ++rank) weights[rank] /= chosen;
}

// Counts the rows of each expert, then gives them places in order.
void GivePlaces(const ExpertChoice& choice, int32_t num_chosen, int32_t* rows_of_experts) {
  int32_t* next = choice.place_end;
  std::fill_n(next, choice.num_experts, 0);
  for (int32_t i = 0; i < num_chosen; ++i) ++next[choice.experts[i]];
  if (rows_of_experts != nullptr) std::copy_n(next, choice.num_experts, rows_of_experts);
  std::exclusive_scan(next, next + choice.num_experts, next, 0);
  for (int32_t i = 0; i < num_chosen; ++i) {
    const int32_t place = next[choice.experts[i]]++;
    choice.places[i] = place;
    choice.rows[place] = i / choice.per_row;
  }
}

// Adds its expert's bias to each place.
void AddBiases(const Context& context, const MultiplyExpertsParams& params) {
  const int32_t* ends = params.choice.place_end;
  const int32_t* all = ends + params.choice.num_experts;
  const int64_t channels = params.out.cols;
  ForEach(context, all[-1], [&](int64_t place) {
    const int64_t expert = std::upper_bound(ends, all, static_cast<int32_t>(place)) - ends;
    const float* bias = params.bias + expert * channels;
    float* out = params.out.row(place);
    for (int64_t i = 0; i < channels; ++i) out[i] += bias[i];
  });
}

}  // namespace

void RouteRows(const Context& context, const RouteRowsParams& params) {
  ForEachRow(context, [&](int64_t row) {
    Choose(params.logits.row(row), params.normalise, params.choice, row);
  });
  GivePlaces(params.choice, context.batch.num_rows() * params.choice.per_row,
             params.rows_of_experts);
}

void MultiplyExperts(const Context& context, const MultiplyExpertsParams& params) {
  thread_local std::vector<PackedProduct> packed;
  thread_local std::vector<PanelProduct> panels;
  packed.clear();
  panels.clear();
  int64_t place = 0;
  for (int32_t e = 0; e < params.choice.num_experts; ++e) {
    const int64_t count = params.choice.place_end[e] - place;
    if (count == 0) continue;
    const TensorView x = params.by_rows ? params.x : params.x.Rows(place, count);
    const int32_t* rows = params.by_rows ? params.choice.rows + place : nullptr;
    const TensorView out = params.out.Rows(place, count);
    const auto& weight =
        static_cast<const StackedMatrix&>(*params.weights->matrices()[static_cast<size_t>(e)]);
    if (!weight.packed_parts().empty()) packed.push_back({x, rows, weight.packed_parts(), out});
    for (const StackedMatrix::FloatPart& part : weight.float_parts()) {
      panels.push_back({x, rows, part.weight.get(), out.Columns(part.first, part.weight->rows())});
    }
    place += count;
  }
  if (!packed.empty()) PackedMatMul(context, packed, /*accumulate=*/false);
  if (!panels.empty()) MultiplyPanels(context, panels, /*accumulate=*/false);
  if (params.bias != nullptr) AddBiases(context, params);
}

void AddExperts(const Context& context, const AddExpertsParams& params) {
  const ExpertChoice& choice = params.choice;
  ForEachRow(context, [&](int64_t row) {
    for (int64_t begin = 0; begin < params.out.cols; begin += kColumns) {
      const int64_t count = std::min(kColumns, params.out.cols - begin);
      std::array<float, kColumns> sums{};
      for (int32_t rank = 0; rank < choice.per_row; ++rank) {
        const int64_t at = row * choice.per_row + rank;
        const float* x = params.x.row(choice.places[at]) + begin;
        for (int64_t i = 0; i < count; ++i)
          sums[static_cast<size_t>(i)] += choice.weights[at] * x[i];
      }
      float* out = params.out.row(row) + begin;
      for (int64_t i = 0; i < count; ++i) out[i] += sums[static_cast<size_t>(i)];
    }
  });
}

}  // namespace eta::cpu
