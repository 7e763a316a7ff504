#include "tests/bench/eta_bench/data.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/params/layer.h"
#include "kernels/quantize.h"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {
namespace {

constexpr int32_t kMaxRowsPerStep = 16384;
constexpr float kScatter = 0.5f;  // of keys around their block's centre; centres have deviation 1

uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Rounds one token of one KV head as a cache of `dtype` stores it.
void RoundRow(DType dtype, std::span<float> row) {
  if (dtype != DType::kFloat8E4M3) {
    for (float& x : row) x = RoundTo(dtype, x);
    return;
  }
  std::vector<uint8_t> codes(row.size());
  const int32_t exponent = QuantizeRow(row, codes);
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::ldexp(E4M3ToFloat(codes[i]), exponent);
}

}  // namespace

float RandomNormal(uint64_t seed, uint64_t i) {
  const uint64_t bits = Mix(i + Mix(seed));
  const auto part = [&](int shift) { return static_cast<int32_t>((bits >> shift) & 0xFFFF); };
  const int32_t sum = part(0) + part(16) + part(32) + part(48) - 2 * 0xFFFF;
  return static_cast<float>(sum) * (1.7320508f / 65536.0f);
}

std::vector<int32_t> DealBlocks(int32_t sequences, int32_t blocks_each, uint64_t seed) {
  std::vector<int32_t> blocks(static_cast<size_t>(sequences) * static_cast<size_t>(blocks_each));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(blocks.begin(), blocks.end(), random);
  return blocks;
}

KvContent::KvContent(const KvGeometry& geometry, int32_t num_blocks, uint64_t seed,
                     cpu::Workers& workers)
    : geometry_(geometry), num_blocks_(num_blocks) {
  const auto width =
      static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(geometry.head_dim);
  const auto b = static_cast<size_t>(geometry.block_size);
  keys_.resize(static_cast<size_t>(num_blocks) * b * width);
  values_.resize(keys_.size());
  const auto d = static_cast<size_t>(geometry.head_dim);
  workers.Run(num_blocks, [&](int64_t block, int) {
    const size_t first = static_cast<size_t>(block) * b * width;
    for (size_t i = 0; i < b * width; ++i) {
      const float centre = RandomNormal(seed, static_cast<size_t>(block) * width + i % width);
      keys_[first + i] = centre + kScatter * RandomNormal(seed + 1, first + i);
      values_[first + i] = RandomNormal(seed + 2, first + i);
    }
    for (size_t at = first; at < first + b * width; at += d) {
      RoundRow(geometry.dtype, std::span(keys_).subspan(at, d));
      RoundRow(geometry.dtype, std::span(values_).subspan(at, d));
    }
  });
}

BackendTokens KvContent::Upload(Backend& backend) const {
  return {UploadFloats(backend, keys_), UploadFloats(backend, values_), num_tokens(),
          int64_t{geometry_.num_kv_heads} * geometry_.head_dim};
}

void KvContent::Fill(Backend& backend, std::span<const SequencePlace> sequences,
                     std::span<const KvLayerView> layers) const {
  const BackendTokens tokens = Upload(backend);
  const std::vector<int32_t> ids(static_cast<size_t>(std::min(num_tokens(), kMaxRowsPerStep)), 0);
  for (const SequencePlace& sequence : sequences) {
    for (int32_t begin = 0; begin < sequence.num_tokens;) {
      const int32_t from = TokenAt(sequence.id, begin);
      SequenceRows rows;
      rows.num_rows = std::min({sequence.num_tokens - begin, num_tokens() - from, kMaxRowsPerStep});
      rows.position = begin;
      rows.kind = RowKind::kPrefill;
      rows.rope_theta = 10000.0f;
      rows.block_table = sequence.block_table.first(static_cast<size_t>(
          (begin + rows.num_rows + geometry_.block_size - 1) / geometry_.block_size));
      const auto count = static_cast<size_t>(rows.num_rows);
      backend.Plan({std::span(ids).first(count), std::span(&rows, 1)});
      for (const KvLayerView& layer : layers) {
        backend.AppendKv({tokens.Keys(from, rows.num_rows), tokens.Values(from, rows.num_rows),
                          geometry_, layer});
      }
      RequireOk(backend.Finish());
      begin += rows.num_rows;
    }
  }
}

std::vector<float> RandomQueries(int32_t rows, int32_t heads, int32_t kv_heads, int32_t head_dim,
                                 float agreement, uint64_t seed) {
  const auto d = static_cast<size_t>(head_dim);
  const auto group = static_cast<size_t>(heads / kv_heads);
  const float own = std::sqrt(1.0f - agreement * agreement);
  std::vector<float> queries(static_cast<size_t>(rows) * static_cast<size_t>(heads) * d);
  for (size_t i = 0; i < queries.size(); ++i) {
    const size_t shared = i / d / group * d + i % d;
    queries[i] = agreement * RandomNormal(seed + 3, shared) + own * RandomNormal(seed + 4, i);
  }
  return queries;
}

std::unique_ptr<Buffer> UploadFloats(Backend& backend, std::span<const float> values) {
  auto buffer = Require(backend.Allocate(values.size_bytes()));
  backend.Upload(buffer->data(), values.data(), values.size_bytes());
  return buffer;
}

std::vector<float> DownloadFloats(Backend& backend, const Buffer& buffer, DType dtype,
                                  size_t count) {
  std::vector<std::byte> bytes(count * SizeOf(dtype));
  backend.Download(bytes.data(), buffer.data(), bytes.size());
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = LoadElement(dtype, bytes.data(), static_cast<int64_t>(i));
  }
  return values;
}

LayerPool AllocatePool(Backend& backend, const KvGeometry& geometry, int32_t num_blocks) {
  const KvLayout layout = Require(backend.Layout(geometry));
  const auto blocks = static_cast<size_t>(num_blocks);
  return {Require(backend.Allocate(blocks * layout.tile_bytes)),
          Require(backend.Allocate(blocks * layout.record_bytes))};
}

void Agreement::Merge(const Agreement& other) {
  const auto worse = [](double& mine, double theirs) {
    if (!(theirs <= mine)) mine = theirs;
  };
  worse(largest_error, other.largest_error);
  worse(excess, other.excess);
  worse(relative, other.relative);
}

std::string Agreement::ToString() const {
  return absl::StrCat("largest error ", largest_error, ", ", 100.0 * relative, " % of the size");
}

Agreement Compare(std::span<const float> got, std::span<const float> want, DType kv, DType out) {
  const double absolute = kv == DType::kFloat32 ? 2e-5 : 2e-3;
  const double rounding = out == DType::kBFloat16  ? 1.0 / 256
                          : out == DType::kFloat16 ? 1.0 / 2048
                                                   : 0.0;
  Agreement agreement;
  double error_square = 0.0;
  double square = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    agreement.Merge({error, error - absolute - rounding * std::abs(want[i]), 0.0});
    error_square += error * error;
    square += static_cast<double>(want[i]) * want[i];
  }
  agreement.relative = std::sqrt(error_square / square);
  return agreement;
}

}  // namespace eta::bench
