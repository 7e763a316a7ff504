#include "kernels/cuda/index/unpack_record.h"

#include <cstring>

#include "kernels/dtype.h"
#include "kernels/quantize.h"

namespace eta::cuda {
namespace {

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

BlockRecord UnpackRecord(const KvTile& tile, std::span<const std::byte> record, int32_t kv_head,
                         std::span<const float> centre) {
  const auto d = static_cast<size_t>(tile.head_dim);
  const std::byte* mu = record.data() + tile.Mu(kv_head);
  const std::byte* sigma = record.data() + tile.Sigma(kv_head);
  const std::byte* scalars = record.data() + tile.Scalars(kv_head);
  BlockRecord unpacked;
  unpacked.v_total.resize(d);
  std::memcpy(unpacked.v_total.data(), record.data() + tile.VTotal(kv_head), d * sizeof(float));
  if (tile.form == RecordForm::kHalf) {
    unpacked.max_norm = Load<float>(scalars);
    for (size_t i = 0; i < d; ++i) {
      const auto element = static_cast<int64_t>(i);
      unpacked.mu.push_back(LoadElement(DType::kFloat16, mu, element));
      unpacked.sigma.push_back(LoadElement(DType::kFloat16, sigma, element));
    }
  } else if (tile.form == RecordForm::kNarrow) {
    const auto trailer = Load<RecordTrailer>(scalars);
    unpacked.max_norm = trailer.max_norm;
    unpacked.mu_error = trailer.mu_error;
    for (size_t i = 0; i < d; ++i) {
      unpacked.mu.push_back(trailer.mu_scale * std::to_integer<int8_t>(mu[i]));
      unpacked.sigma.push_back(trailer.sigma_scale *
                               E4M3ToFloat(std::to_integer<uint8_t>(sigma[i])));
    }
  } else {
    const auto trailer = Load<OutlierTrailer>(scalars);
    const std::byte* outlier = record.data() + tile.Outlier(kv_head);
    unpacked.step = HalfToFloat(trailer.step);
    unpacked.outlier_step = HalfToFloat(trailer.outlier_step);
    for (size_t i = 0; i < d; ++i) {
      unpacked.mu.push_back(centre[i] + unpacked.step * std::to_integer<int8_t>(mu[i]));
      unpacked.sigma.push_back(unpacked.step * std::to_integer<uint8_t>(sigma[i]));
      unpacked.outlier.push_back(centre[i] +
                                 unpacked.outlier_step * std::to_integer<int8_t>(outlier[i]));
    }
  }
  return unpacked;
}

}  // namespace eta::cuda
