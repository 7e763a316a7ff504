// What steps cost in time by what they read, in bytes that take as long.
//
// Three unknowns are fitted to the durations of the last steps, of which old ones fade: what a step
// costs whatever its rows are, in units of the weights that it reads; what a byte of keys and
// values costs; and what one more row of a sequence costs that has a row in the step, whose blocks
// are read once for both where the device can do so. Until steps have told them apart, bytes are
// taken to cost alike and such a row next to nothing: what is tried corrects that. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace eta {

// What a step without prompt rows read.
struct StepLoad {
  int64_t first_bytes = 0;  // keys and values, of the first row of each sequence
  int64_t more_bytes = 0;   // likewise, of the rows behind it
  int32_t more_rows = 0;
};

class ReadCost {
 public:
  // weight_bytes: what a step of one row reads beside keys and values, over 0.
  explicit ReadCost(int64_t weight_bytes) : weight_bytes_(static_cast<double>(weight_bytes)) {}

  void Measure(const StepLoad& load, std::chrono::nanoseconds duration);

  // Costs, all over 0: of a step without its keys and values; of so many bytes of them; of one more
  // row of a sequence whose rows read so many.
  double step() const { return costs_[0] * weight_bytes_; }
  double Bytes(double kv_bytes) const { return costs_[1] * kv_bytes; }
  double MoreRow(double kv_bytes) const { return costs_[2] * (weight_bytes_ + kv_bytes); }

 private:
  static constexpr int kUnknowns = 3;
  using Vector = std::array<double, kUnknowns>;
  static constexpr Vector kFirst = {1.0, 1.0, 0.03};

  void Solve();

  double weight_bytes_;
  // Weighted sums over the steps, of products of two of what is read, and of it and seconds.
  std::array<Vector, kUnknowns> products_{};
  Vector seconds_{};
  Vector costs_ = kFirst;
};

}  // namespace eta
