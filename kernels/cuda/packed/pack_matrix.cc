#include "kernels/cuda/packed/pack_matrix.h"

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/workers.h"
#include "kernels/cuda/packed/pack_tiles.h"
#include "kernels/system/usable_cpus.h"

namespace eta::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;
constexpr int64_t kMostRows = int64_t{1} << 30;
constexpr int64_t kMostCols = int64_t{1} << 24;

// One thread where no others can be started.
std::unique_ptr<cpu::Workers> StartWorkers() {
  try {
    return std::make_unique<cpu::Workers>(ReadUsableCpus().threads());
  } catch (const std::system_error&) {
    return std::make_unique<cpu::Workers>(1);
  }
}

void UploadPart(Backend& backend, cpu::Workers& workers, const PackJob& job, std::byte* to) {
  const int64_t tiles = Tiles(job.matrix.rows);
  const int64_t tile_bytes = TileBytes(job.type, job.matrix.cols);
  const int64_t most = std::clamp<int64_t>(kPieceBytes / tile_bytes, 1, tiles);
  std::vector<std::byte> piece(static_cast<size_t>(most * tile_bytes));
  std::vector<float> units(static_cast<size_t>(tiles * kTileChannels));
  for (int64_t first = 0; first < tiles; first += most) {
    const int64_t count = std::min(most, tiles - first);
    workers.Run(count, [&](int64_t i, int) {
      const auto bytes = static_cast<size_t>(tile_bytes);
      PackTiles(job, first + i, std::span(piece).subspan(static_cast<size_t>(i) * bytes, bytes),
                std::span(units).subspan(static_cast<size_t>((first + i) * kTileChannels),
                                         kTileChannels));
    });
    backend.Upload(to + first * tile_bytes, piece.data(), static_cast<size_t>(count * tile_bytes));
  }
  backend.Upload(to + tiles * tile_bytes, units.data(), units.size() * sizeof(float));
}

}  // namespace

bool KeepsPacked(std::span<const HostMatrix> parts, WeightFormat format, DType compute) {
  return compute != DType::kFloat32 && std::ranges::none_of(parts, &HostMatrix::exact) &&
         std::ranges::any_of(parts, [&](const HostMatrix& part) {
           return PackedTypeOf(part, format) != PackedType::kNone;
         });
}

absl::StatusOr<std::unique_ptr<DeviceMatrix>> PackMatrix(Backend& backend,
                                                         std::span<const HostMatrix> parts,
                                                         WeightFormat format, DType compute) {
  if (parts.size() > kMostParts) {
    return absl::InvalidArgumentError(
        absl::StrCat("parts: a stack of packed weights has ", kMostParts, " matrices at most"));
  }
  const int64_t cols = parts.front().cols;
  WeightParts kept = {};
  int64_t rows = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    rows += parts[i].rows;
    if (rows > kMostRows || cols > kMostCols) {
      return absl::InvalidArgumentError(absl::StrCat("parts: packed weights have ", kMostRows,
                                                     " rows of ", kMostCols, " numbers at most"));
    }
    const PackedType type = PackedTypeOf(parts[i], format);
    kept[i] = {type == PackedType::kNone ? PackedType::kSixteen : type,
               static_cast<int32_t>(parts[i].rows)};
  }
  auto buffer = backend.Allocate(static_cast<size_t>(PartsBytes(kept, cols)));
  if (!buffer.ok()) return buffer.status();
  const std::unique_ptr<cpu::Workers> workers = StartWorkers();
  std::byte* to = (*buffer)->data();
  for (size_t i = 0; i < parts.size(); ++i) {
    UploadPart(backend, *workers, {parts[i], format, kept[i].type, compute}, to);
    to += PartBytes(kept[i], cols);
  }
  return std::make_unique<DeviceMatrix>(*std::move(buffer), compute, rows, cols, kept);
}

}  // namespace eta::cuda
