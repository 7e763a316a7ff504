// A layer's experts in the tests of products on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/params/experts.h"
#include "kernels/params/layer.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {

struct ExpertLayer {
  int32_t experts;
  int32_t per_row;
  int64_t dim;
  int64_t width;
  bool biased = false;  // with the clamped activation, as of gpt-oss
};

// Whom rows choose.
enum class Crowd { kSpread, kTogether, kFewExperts };

// A step's choice, its tensors and products, all in one device's memory. Tensors have room for
// `most_rows`; a step's rows may be fewer.
class ExpertStep {
 public:
  ExpertStep(Device& device, const ExpertLayer& layer, int64_t most_rows)
      : device_(device), layer_(layer) {
    const DType type = device.activation_dtype();
    const int64_t rows = device->PaddedRows(most_rows);
    const int64_t places = rows * layer.per_row;
    const auto integers = [&](int64_t count) {
      return device.Put(std::vector<int32_t>(static_cast<size_t>(count), -1));
    };
    logits_ = device.Empty(rows, layer.experts);
    x_ = device.Empty(rows, layer.dim, 0, type);
    wide_ = device.Empty(places, 2 * layer.width, 0, type);
    activated_ = device.Empty(places, layer.width, 0, type);
    narrow_ = device.Empty(places, layer.dim);
    out_ = device.Empty(rows, layer.dim);
    if (layer.biased) {
      Random random(54);  // the same on every device
      up_bias_ = device.Put(Normal(random, layer.experts, 2 * layer.width).data);
      down_bias_ = device.Put(Normal(random, layer.experts, layer.dim).data);
    }
    choice_ = {.num_experts = layer.experts,
               .per_row = layer.per_row,
               .experts = integers(places),
               .weights = device.Put(std::vector<float>(static_cast<size_t>(places))),
               .places = integers(places),
               .rows = integers(places),
               .place_end = integers(layer.experts)};
  }

  void Begin(int64_t rows) {
    num_rows_ = rows;
    tokens_.assign(static_cast<size_t>(rows), 0);
    sequence_ = {.num_rows = static_cast<int32_t>(rows), .kind = RowKind::kDecode};
    sequence_.attention.admit_all = true;
    device_->Plan({tokens_, {&sequence_, 1}});
  }
  void Fill(const TensorView& view, const HostTensor& values) {
    const TensorView from = device_.Put(values, view.stride - view.cols, view.dtype);
    ASSERT_EQ(from.stride, view.stride);
    const size_t bytes = static_cast<size_t>(values.rows * view.stride) * SizeOf(view.dtype);
    std::vector<std::byte> copy(bytes);
    device_->Download(copy.data(), reinterpret_cast<const std::byte*>(from.data), bytes);
    device_->Upload(reinterpret_cast<std::byte*>(view.data), copy.data(), bytes);
  }

  void Route(bool normalise, bool counts = true) {
    counts_.assign(static_cast<size_t>(layer_.experts), -1);
    device_->experts().RouteRows(
        {padded(logits_, 1), normalise, choice_, counts ? counts_.data() : nullptr});
  }
  // `apart`: the step is finished after each op, so nothing is done together.
  void Multiply(const ExpertStack& up, const ExpertStack& down, bool apart) {
    ExpertOps& ops = device_->experts();
    const int64_t k = layer_.per_row;
    const auto finish = [&] {
      if (!apart) return;
      EXPECT_EQ(device_->Finish(), absl::OkStatus());
    };
    finish();
    ops.MultiplyExperts({padded(x_, 1), true, choice_, &up, padded(wide_, k), up_bias_});
    finish();
    device_->SwiGlu({padded(wide_, k), padded(activated_, k),
                     layer_.biased ? Activation::kClamped : Activation::kSilu});
    finish();
    ops.MultiplyExperts(
        {padded(activated_, k), false, choice_, &down, padded(narrow_, k), down_bias_});
    finish();
    ops.AddExperts({padded(narrow_, k), choice_, padded(out_, 1)});
  }

  TensorView logits() const { return logits_; }
  TensorView x() const { return x_; }
  TensorView out() const { return out_; }
  HostTensor Wide() { return device_.Get(wide_.Rows(0, places())); }
  HostTensor Activated() { return device_.Get(activated_.Rows(0, places())); }
  HostTensor Narrow() { return device_.Get(narrow_.Rows(0, places())); }
  HostTensor Out() { return device_.Get(out_.Rows(0, num_rows_)); }
  const std::vector<int32_t>& counts() const { return counts_; }
  std::vector<int32_t> experts() { return device_.Get(choice_.experts, size()); }
  std::vector<float> weights() { return device_.Get(choice_.weights, size()); }
  std::vector<int32_t> places_of_rows() { return device_.Get(choice_.places, size()); }
  std::vector<int32_t> rows_of_places() { return device_.Get(choice_.rows, size()); }
  std::vector<int32_t> place_end() {
    return device_.Get(choice_.place_end, static_cast<size_t>(layer_.experts));
  }

 private:
  TensorView padded(const TensorView& view, int64_t each) const {
    return view.Rows(0, device_->PaddedRows(num_rows_) * each);
  }
  int64_t places() const { return num_rows_ * layer_.per_row; }
  size_t size() const { return static_cast<size_t>(places()); }

  Device& device_;
  ExpertLayer layer_;
  int64_t num_rows_ = 0;
  TensorView logits_, x_, wide_, activated_, narrow_, out_;
  const float* up_bias_ = nullptr;
  const float* down_bias_ = nullptr;
  ExpertChoice choice_;
  std::vector<int32_t> tokens_;
  SequenceRows sequence_;
  std::vector<int32_t> counts_;
};

inline HostTensor Logits(Random& random, int64_t rows, int32_t experts, Crowd crowd) {
  HostTensor logits = Normal(random, rows, experts);
  for (int64_t r = 0; r < rows; ++r) {
    for (int32_t e = 0; e < experts; ++e) {
      if (crowd == Crowd::kTogether) logits.row(r)[e] = static_cast<float>((e * 7 + 3) % experts);
      if (crowd == Crowd::kFewExperts && e % 5 != 1) logits.row(r)[e] -= 20.0f;
    }
  }
  return logits;
}

inline void ExpectNear(const HostTensor& got, const HostTensor& want, double tolerance,
                       const std::string& what) {
  ASSERT_EQ(got.rows, want.rows);
  for (int64_t r = 0; r < want.rows; ++r) {
    ASSERT_LT(RelativeError(got.row(r), want.row(r), want.cols), tolerance)
        << what << ": row " << r << " of " << want.rows;
  }
}

}  // namespace eta::testing
