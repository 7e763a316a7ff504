#include "calibration/evaluation/tables/measures/block_bounds.h"

#include <algorithm>
#include <numeric>

#include "calibration/evaluation/rivals/kept_blocks.h"
#include "engine/base/status_macros.h"
#include "kernels/backends/make_backend.h"
#include "kernels/block_bound.h"
#include "kernels/params/layer.h"
#include "kernels/tensor_view.h"

namespace eta {

const char* Name(BoundKind kind) {
  switch (kind) {
    case BoundKind::kFlat:
      return "moment, flat";
    case BoundKind::kEnvelope:
      return "moment";
    case BoundKind::kOutlier:
      return "outlier";
    case BoundKind::kBox:
      return "box";
  }
  return "";
}

absl::StatusOr<BlockBounds> BlockBounds::Of(const RecordedWindow& window,
                                            const RecordedLayer& layer, const BoundSpec& spec) {
  BlockBounds bounds(window, spec);
  if (spec.block_size < 1) return absl::InvalidArgumentError("block_size: must be at least 1");
  if (spec.kind == BoundKind::kBox) {
    bounds.MakeBoxes(layer);
    return bounds;
  }
  RETURN_IF_ERROR(bounds.MakeRecords(layer));
  return bounds;
}

absl::Status BlockBounds::MakeRecords(const RecordedLayer& layer) {
  const bool outlier = spec_.kind == BoundKind::kOutlier;
  geometry_ = {.num_kv_heads = window_->num_kv_heads,
               .head_dim = window_->head_dim,
               .block_size = spec_.block_size,
               .sub_block = spec_.kind == BoundKind::kFlat ? 0 : 4,
               .dtype = DType::kFloat32,  // keys are rounded already
               .index = outlier ? IndexKind::kOutlier : IndexKind::kMoment,
               .index_dtype = outlier ? DType::kInt8 : DType::kFloat16};
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeBackend({.name = "reference"}));
  ASSIGN_OR_RETURN(const KvLayout layout, backend->Layout(geometry_));

  const auto d = static_cast<size_t>(window_->head_dim);
  const auto heads = static_cast<size_t>(window_->num_kv_heads);
  const size_t keys = layer.keys.front().size() / d;
  const size_t blocks = keys / static_cast<size_t>(spec_.block_size);
  records_.assign(heads, std::vector<BlockRecord>(blocks));
  if (blocks == 0) return absl::OkStatus();
  const size_t rows = blocks * static_cast<size_t>(spec_.block_size);
  std::vector<float> k(rows * heads * d);
  std::vector<float> v(k.size());  // records say nothing of values but their sum
  for (size_t t = 0; t < rows; ++t) {
    for (size_t h = 0; h < heads; ++h) {
      std::copy_n(layer.keys[h].data() + t * d, d, k.data() + (t * heads + h) * d);
    }
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> tiles,
                   backend->Allocate(blocks * layout.tile_bytes));
  ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> memory,
                   backend->Allocate(blocks * layout.record_bytes));
  const auto or_null = [](const std::vector<float>& values) {
    return values.empty() ? nullptr : values.data();
  };
  const KvLayerView kv = {tiles->data(), memory->data(), or_null(layer.index_metric),
                          or_null(layer.index_centre)};
  std::vector<int32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  const std::vector<int32_t> tokens(rows);
  const SequenceRows sequence = {
      .num_rows = static_cast<int32_t>(rows), .kind = RowKind::kPrefill, .block_table = table};
  const auto view = [&](std::vector<float>& data) {
    const auto cols = static_cast<int64_t>(heads * d);
    return TensorView{data.data(), static_cast<int64_t>(rows), cols, cols};
  };
  backend->Plan({tokens, std::span(&sequence, 1)});
  backend->AppendKv({view(k), view(v), geometry_, kv});
  RETURN_IF_ERROR(backend->Finish());
  for (size_t h = 0; h < heads; ++h) {
    for (size_t j = 0; j < blocks; ++j) {
      records_[h][j] =
          backend->ReadRecord(geometry_, kv, static_cast<int32_t>(j), static_cast<int32_t>(h));
    }
  }
  return absl::OkStatus();
}

void BlockBounds::MakeBoxes(const RecordedLayer& layer) {
  const auto d = static_cast<size_t>(window_->head_dim);
  const auto b = static_cast<size_t>(spec_.block_size);
  for (const std::vector<float>& keys : layer.keys) {
    std::vector<float>& low = low_.emplace_back();
    std::vector<float>& high = high_.emplace_back();
    for (size_t block = 0; block + b * d <= keys.size(); block += b * d) {
      for (size_t i = 0; i < d; ++i) {
        float least = keys[block + i];
        float most = least;
        for (size_t t = 1; t < b; ++t) {
          least = std::min(least, keys[block + t * d + i]);
          most = std::max(most, keys[block + t * d + i]);
        }
        low.push_back(least);
        high.push_back(most);
      }
    }
  }
}

std::vector<float> BlockBounds::Row(const RecordedRow& row, int32_t head) const {
  const std::span<const float> q = window_->query(row, head);
  const auto kv_head = static_cast<size_t>(head / window_->group_size());
  std::vector<float> bounds(static_cast<size_t>(row.num_keys() / spec_.block_size));
  for (size_t j = 0; j < bounds.size(); ++j) {
    if (spec_.kind != BoundKind::kBox) {
      bounds[j] = BoundOf(records_[kv_head][j].View(), q, window_->softmax_scale).At(spec_.z);
      continue;
    }
    const auto low = std::span(low_[kv_head]).subspan(j * q.size());
    const auto high = std::span(high_[kv_head]).subspan(j * q.size());
    bounds[j] = window_->softmax_scale * BoxBound(q, low, high);
  }
  return bounds;
}

}  // namespace eta
