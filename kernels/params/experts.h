// One parameter struct for each op of a layer's experts, in the order in which a layer calls them
// (eta-semantics.md, "Experts"); between the two products SwiGlu treats the places as rows.
// Pointers are in the backend's memory unless a comment says host. E is the number of experts, k
// that of a row, R the rows of the planned batch.
#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace eta {

class ExpertStack;

// Which experts the rows of a step go to. The rows of an expert have places side by side, in the
// order of rows; an expert's places follow those of the expert before it.
struct ExpertChoice {
  int32_t num_experts = 0;       // E
  int32_t per_row = 0;           // k
  int32_t* experts = nullptr;    // [R, k], by rank
  float* weights = nullptr;      // [R, k], likewise
  int32_t* places = nullptr;     // [R, k], likewise: of the row with that expert, in [0, R k)
  int32_t* rows = nullptr;       // [R k]: the row at a place
  int32_t* place_end = nullptr;  // [E]: behind the expert's last place

  bool operator==(const ExpertChoice&) const = default;
};

// The order in which a row chooses experts, by its logits [E]: the greater one first, of equal ones
// the lower number. A NaN is below every number.
class ExpertOrder {
 public:
  explicit ExpertOrder(const float* logits) : logits_(logits) {}

  bool operator()(int32_t a, int32_t b) const {
    const float x = logits_[a];
    const float y = logits_[b];
    if (x > y) return true;
    if (x < y) return false;
    const bool x_is_number = x == x;
    const bool y_is_number = y == y;
    return x_is_number == y_is_number ? a < b : x_is_number;
  }

 private:
  const float* logits_;
};

// Chooses each row's k experts by the logits of all, weighs them, and gives them places.
struct RouteRowsParams {
  TensorView logits;  // [rows, E]
  bool normalise;     // the weights of a row add up to 1
  ExpertChoice choice;
  int32_t* rows_of_experts;  // [E], host: how many rows each expert has; null: nobody asks

  bool operator==(const RouteRowsParams&) const = default;
};

// out = x * weight^T + bias, each place by its expert's. Weights of experts without places are not
// read. Each output element sums over K in one fixed order; its bias comes last.
struct MultiplyExpertsParams {
  TensorView x;  // [R k, K], or [rows, K] if `by_rows`: a place takes its row
  bool by_rows;
  ExpertChoice choice;
  const ExpertStack* weights;   // of [N, K]
  TensorView out;               // [R k, N]
  const float* bias = nullptr;  // [E, N]; null: none
};

// out += what a row's experts gave, weighed, summed from the first rank to the last.
struct AddExpertsParams {
  TensorView x;  // [R k, D]
  ExpertChoice choice;
  TensorView out;  // [rows, D]

  bool operator==(const AddExpertsParams&) const = default;
};

}  // namespace eta
