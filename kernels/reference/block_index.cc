// AppendKv stores K and V [R, HKV * d] of the step's rows in the cache, rounded to its type. It
// writes the record of every block that this fills: per KV head mu [d], sigma [d], M and the
// running sum of V [d] (eta-semantics.md, "Block index"; outlier_record.cc has the other kind).
// With the record a query can bound its scores against the block without reading the keys.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/quantize.h"
#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

size_t RecordBytes(const KvGeometry& geometry) {
  const size_t d = static_cast<size_t>(geometry.head_dim);
  const size_t vectors = geometry.index == IndexKind::kOutlier ? 3 : 2;
  const size_t bytes = d * sizeof(double) + (vectors * d + 4) * sizeof(float);
  return (bytes + alignof(double) - 1) / alignof(double) * alignof(double);
}

// Bytes of one token's K or V of one KV head.
size_t RowBytes(const KvGeometry& geometry) {
  const size_t exponent = geometry.dtype == DType::kFloat8E4M3 ? sizeof(int8_t) : 0;
  return static_cast<size_t>(geometry.head_dim) * SizeOf(geometry.dtype) + exponent;
}

float RoundToHalf(double value) {
  return RoundTo(DType::kFloat16, static_cast<float>(value));
}

// Deviation of coordinate i from `mean` over the block: flat, or the largest over sub-blocks.
double Deviation(const KvPages& pages, int64_t first_slot, int32_t kv_head, int32_t i,
                 double mean) {
  const int32_t b = pages.geometry().block_size;
  const int32_t part = pages.geometry().sub_block > 0 ? pages.geometry().sub_block : b;
  double largest = 0.0;
  for (int32_t begin = 0; begin < b; begin += part) {
    double sum = 0.0;
    for (int32_t t = begin; t < begin + part; ++t) {
      const double distance = pages.Key(first_slot + t, kv_head, i) - mean;
      sum += distance * distance;
    }
    largest = std::max(largest, std::sqrt(sum / part));
  }
  return largest;
}

// Rounds a record's mu and sigma to 8 bits (eta-semantics.md, "8-bit index").
void Narrow(const Record& record, size_t d) {
  std::vector<int8_t> mu8(d);
  std::vector<uint8_t> sigma8(d);
  const RecordScales scales = QuantizeRecord({record.mu, d}, {record.sigma, d}, mu8, sigma8);
  for (size_t i = 0; i < d; ++i) {
    record.mu[i] = scales.mu_scale * static_cast<float>(mu8[i]);
    record.sigma[i] = std::ldexp(E4M3ToFloat(sigma8[i]), scales.sigma_exponent);
  }
  *record.mu_error = scales.mu_error;
}

void WriteMomentRecord(const KvPages& pages, int32_t block, int32_t kv_head) {
  const int32_t b = pages.geometry().block_size;
  const int32_t d = pages.geometry().head_dim;
  const int64_t first_slot = static_cast<int64_t>(block) * b;
  const Record record = pages.RecordOf(block, kv_head);

  double max_norm = 0.0;
  for (int32_t t = 0; t < b; ++t) {
    double sum = 0.0;
    for (int32_t i = 0; i < d; ++i) {
      const double k = pages.Key(first_slot + t, kv_head, i);
      sum += k * k;
    }
    max_norm = std::max(max_norm, std::sqrt(sum));
  }
  *record.max_norm = static_cast<float>(max_norm);

  for (int32_t i = 0; i < d; ++i) {
    double key_sum = 0.0;
    for (int32_t t = 0; t < b; ++t) key_sum += pages.Key(first_slot + t, kv_head, i);
    const double mean = key_sum / b;
    record.mu[i] = RoundToHalf(mean);
    record.sigma[i] = RoundToHalf(Deviation(pages, first_slot, kv_head, i, mean));
  }
  *record.mu_error = 0.0f;
  if (pages.geometry().index_dtype == DType::kInt8) Narrow(record, static_cast<size_t>(d));
}

// The sum of V up to the end of the full block `ordinal` of a sequence.
void WriteValueTotal(const KvPages& pages, const SequenceRows& sequence, int32_t ordinal,
                     int32_t kv_head) {
  const int32_t b = pages.geometry().block_size;
  const int32_t block = pages.Block(sequence, ordinal);
  const Record record = pages.RecordOf(block, kv_head);
  for (int32_t i = 0; i < pages.geometry().head_dim; ++i) {
    double sum = 0.0;
    for (int32_t t = 0; t < b; ++t) {
      sum += pages.Value(static_cast<int64_t>(block) * b + t, kv_head, i);
    }
    const double before =
        ordinal > 0 ? pages.RecordOf(pages.Block(sequence, ordinal - 1), kv_head).v_total[i] : 0.0;
    record.v_total[i] = before + sum;
  }
}

}  // namespace

RecordView Record::View(const KvGeometry& geometry) const {
  const auto d = static_cast<size_t>(geometry.head_dim);
  RecordView view = {.mu = {mu, d}, .sigma = {sigma, d}};
  if (geometry.index == IndexKind::kOutlier) {
    view.outlier = {outlier, d};
    view.step = *step;
    view.outlier_step = *outlier_step;
  } else {
    view.max_norm = *max_norm;
    view.mu_error = *mu_error;
  }
  return view;
}

KvLayout KvPages::Layout(const KvGeometry& geometry) {
  const size_t heads = static_cast<size_t>(geometry.num_kv_heads);
  const size_t rows_per_block = 2 * heads * static_cast<size_t>(geometry.block_size);
  return {rows_per_block * RowBytes(geometry), heads * RecordBytes(geometry)};
}

int32_t KvPages::Block(const SequenceRows& sequence, int64_t ordinal) const {
  return sequence.table(kv_.table)[static_cast<size_t>(ordinal)];
}

int64_t KvPages::Slot(const SequenceRows& sequence, int32_t position) const {
  const int32_t b = geometry_.block_size;
  return static_cast<int64_t>(Block(sequence, position / b)) * b + position % b;
}

std::byte* KvPages::Row(int64_t slot, int value, int32_t kv_head) const {
  const int64_t row = (slot * 2 + value) * geometry_.num_kv_heads + kv_head;
  return kv_.tiles + static_cast<size_t>(row) * RowBytes(geometry_);
}

float KvPages::Load(const std::byte* row, int32_t i) const {
  if (geometry_.dtype != DType::kFloat8E4M3) return LoadElement(geometry_.dtype, row, i);
  // A table, since the innermost loops come here.
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all;
    for (size_t code = 0; code < all.size(); ++code) {
      all[code] = E4M3ToFloat(static_cast<uint8_t>(code));
    }
    return all;
  }();
  const auto exponent = static_cast<int8_t>(row[geometry_.head_dim]);
  return std::ldexp(values[static_cast<size_t>(row[i])], exponent);
}

void KvPages::StoreRow(std::byte* row, const float* values) const {
  const auto d = static_cast<size_t>(geometry_.head_dim);
  if (geometry_.dtype == DType::kFloat8E4M3) {
    const int32_t exponent = QuantizeRow({values, d}, {reinterpret_cast<uint8_t*>(row), d});
    row[d] = static_cast<std::byte>(exponent);
    return;
  }
  for (size_t i = 0; i < d; ++i) {
    StoreElement(geometry_.dtype, row, static_cast<int64_t>(i), values[i]);
  }
}

float KvPages::Key(int64_t slot, int32_t kv_head, int32_t i) const {
  return Load(Row(slot, 0, kv_head), i);
}

float KvPages::Value(int64_t slot, int32_t kv_head, int32_t i) const {
  return Load(Row(slot, 1, kv_head), i);
}

void KvPages::Store(int64_t slot, int32_t kv_head, const float* key, const float* value) const {
  StoreRow(Row(slot, 0, kv_head), key);
  StoreRow(Row(slot, 1, kv_head), value);
}

Record KvPages::RecordOf(int32_t block, int32_t kv_head) const {
  const size_t d = static_cast<size_t>(geometry_.head_dim);
  const size_t index = static_cast<size_t>(block) * static_cast<size_t>(geometry_.num_kv_heads) +
                       static_cast<size_t>(kv_head);
  std::byte* at = kv_.records + index * RecordBytes(geometry_);
  auto* v_total = reinterpret_cast<double*>(at);
  auto* mu = reinterpret_cast<float*>(at + d * sizeof(double));
  float* outlier = mu + 2 * d;
  float* scalars = geometry_.index == IndexKind::kOutlier ? outlier + d : outlier;
  return {v_total, mu, mu + d, outlier, scalars, scalars + 1, scalars + 2, scalars + 3};
}

void AppendKv(const BatchView& batch, const AppendKvParams& params) {
  const KvPages pages(params.geometry, params.kv);
  const int32_t d = params.geometry.head_dim;
  ForEachRow(batch, [&](const Row& row) {
    for (int32_t h = 0; h < params.geometry.num_kv_heads; ++h) {
      pages.Store(pages.Slot(row.sequence, row.position), h, params.k.row(row.index) + h * d,
                  params.v.row(row.index) + h * d);
    }
  });
  if (params.kv.records == nullptr) return;
  ForEachRow(batch, [&](const Row& row) {
    if (row.num_keys() % params.geometry.block_size != 0) return;
    const int32_t filled = row.num_full_blocks(params.geometry.block_size) - 1;
    const int32_t block = pages.Block(row.sequence, filled);
    for (int32_t h = 0; h < params.geometry.num_kv_heads; ++h) {
      if (params.geometry.index == IndexKind::kOutlier) {
        WriteOutlierRecord(pages, params.kv, block, h);
      } else {
        WriteMomentRecord(pages, block, h);
      }
      WriteValueTotal(pages, row.sequence, filled, h);
    }
  });
}

}  // namespace eta::reference
