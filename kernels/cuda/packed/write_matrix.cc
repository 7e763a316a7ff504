#include "kernels/cuda/packed/write_matrix.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/weights/host_rows.h"

namespace eta::cuda {
namespace {

// Writes row `row` of `part` as `dtype`. `numbers`: memory for the row.
void ConvertRow(const HostMatrix& part, int64_t row, DType dtype, std::vector<float>& numbers,
                std::byte* out) {
  numbers.resize(static_cast<size_t>(part.cols));
  ReadFloats(part, row, numbers);
  for (int64_t i = 0; i < part.cols; ++i) {
    StoreElement(dtype, out, i, numbers[static_cast<size_t>(i)]);
  }
}

// In pieces, so that the host holds no second copy of the matrix.
void UploadConverted(Backend& backend, const HostMatrix& part, DType dtype, std::byte* to) {
  constexpr size_t kPieceBytes = size_t{4} << 20;
  const size_t row_bytes = static_cast<size_t>(part.cols) * SizeOf(dtype);
  const auto most = static_cast<int64_t>(std::max<size_t>(kPieceBytes / row_bytes, 1));
  std::vector<std::byte> piece(static_cast<size_t>(std::min(most, part.rows)) * row_bytes);
  std::vector<float> numbers;
  for (int64_t row = 0; row < part.rows;) {
    const int64_t end = std::min(row + most, part.rows);
    std::byte* out = piece.data();
    for (; row < end; ++row, out += row_bytes) ConvertRow(part, row, dtype, numbers, out);
    const auto bytes = static_cast<size_t>(out - piece.data());
    backend.Upload(to, piece.data(), bytes);
    to += bytes;
  }
}

bool HasType(const HostMatrix& part, DType dtype) {
  return part.blocks == nullptr && part.float8 == nullptr && part.dtype == dtype;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMatrix>> WriteMatrix(Backend& backend,
                                                          std::span<const HostMatrix> parts,
                                                          WeightFormat format, DType compute) {
  if (format == WeightFormat::kInt8 || format == WeightFormat::kInt4) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights: ", std::string(Name(format)),
                     " on cuda needs products in bfloat16 or float16 (--compute)"));
  }
  const bool exact = std::ranges::any_of(parts, &HostMatrix::exact);
  const bool fits =
      std::ranges::all_of(parts, [&](const HostMatrix& part) { return HasType(part, compute); });
  const DType dtype = exact && !fits ? DType::kFloat32 : compute;
  int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  const int64_t cols = parts.front().cols;
  const size_t row_bytes = static_cast<size_t>(cols) * SizeOf(dtype);
  auto buffer = backend.Allocate(static_cast<size_t>(rows) * row_bytes);
  if (!buffer.ok()) return buffer.status();
  std::byte* to = (*buffer)->data();
  for (const HostMatrix& part : parts) {
    if (HasType(part, dtype)) {
      backend.Upload(to, part.data, static_cast<size_t>(part.rows) * row_bytes);
    } else {
      UploadConverted(backend, part, dtype, to);
    }
    to += static_cast<size_t>(part.rows) * row_bytes;
  }
  return std::make_unique<DeviceMatrix>(*std::move(buffer), dtype, rows, cols);
}

}  // namespace eta::cuda
