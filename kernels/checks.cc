#include "kernels/checks.h"

#include "absl/strings/str_cat.h"
#include "kernels/params/sampling.h"
#include "kernels/weights/float8_scales.h"
#include "kernels/weights/ggml_type.h"

namespace eta {
namespace {

constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxBlockSize = 128;

}  // namespace

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

absl::Status CheckParts(std::span<const HostMatrix> parts) {
  if (parts.empty()) return absl::InvalidArgumentError("parts: at least one matrix is needed");
  for (const HostMatrix& part : parts) {
    if (part.data == nullptr || part.rows <= 0 || part.cols <= 0) {
      return absl::InvalidArgumentError("parts: a matrix is empty");
    }
    if (part.cols != parts.front().cols) {
      return absl::InvalidArgumentError("parts: matrices differ in columns");
    }
    if (!IsFloat(part.dtype)) {
      return absl::InvalidArgumentError("parts: dtype is not float32, float16 or bfloat16");
    }
    if (part.float8 != nullptr &&
        (part.dtype != DType::kFloat32 || part.blocks != nullptr || part.float8->data == nullptr ||
         part.float8->block_rows < 1 || part.float8->block_cols < 1)) {
      return absl::InvalidArgumentError("parts: e4m3 needs scales, and dtype float32");
    }
    if (part.blocks == nullptr) continue;
    if (part.dtype != part.blocks->unpacked) {
      return absl::InvalidArgumentError(
          absl::StrCat("parts: dtype is not what ", part.blocks->name, " unpacks to"));
    }
    if (part.cols % part.blocks->block_elements != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("parts: rows of ", part.cols, " numbers are not whole blocks of ",
                       part.blocks->name, ", ", part.blocks->block_elements, " numbers each"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCacheTypes(const KvGeometry& geometry) {
  if (!IsFloat(geometry.dtype) && geometry.dtype != DType::kFloat8E4M3) {
    return absl::InvalidArgumentError(
        "kv_dtype: the KV cache holds float32, float16, bfloat16 or float8_e4m3");
  }
  if (geometry.index == IndexKind::kOutlier) {
    if (geometry.index_dtype == DType::kInt8) return absl::OkStatus();
    return absl::InvalidArgumentError("index_dtype: an index of kind outlier holds int8");
  }
  if (geometry.index_dtype != DType::kFloat16 && geometry.index_dtype != DType::kInt8) {
    return absl::InvalidArgumentError("index_dtype: the block index holds float16 or int8");
  }
  return absl::OkStatus();
}

absl::Status CheckGeometry(const KvGeometry& geometry) {
  if (geometry.num_kv_heads < 1 || geometry.num_kv_heads > 1024) {
    return absl::InvalidArgumentError("num_kv_heads: not in 1..1024");
  }
  if (geometry.head_dim < 16 || geometry.head_dim > kMaxHeadDim || geometry.head_dim % 16 != 0) {
    return absl::InvalidArgumentError("head_dim: not a multiple of 16 in 16..256");
  }
  if (geometry.block_size < 1 || geometry.block_size > kMaxBlockSize) {
    return absl::InvalidArgumentError("block_size: not in 1..128");
  }
  if (geometry.sub_block < 0 ||
      (geometry.sub_block > 0 && geometry.block_size % geometry.sub_block != 0)) {
    return absl::InvalidArgumentError("sub_block: neither 0 nor a divisor of block_size");
  }
  return CheckCacheTypes(geometry);
}

absl::Status CheckSample(const SampleParams& params) {
  const size_t words = MaskWords(params.logits.cols);
  for (const SampleRow& row : params.rows) {
    if (row.mask.empty() || row.mask.size() == words) continue;
    return absl::InvalidArgumentError(absl::StrCat("mask: has ", row.mask.size(),
                                                   " words, and a vocabulary of ",
                                                   params.logits.cols, " tokens has ", words));
  }
  return absl::OkStatus();
}

}  // namespace eta
