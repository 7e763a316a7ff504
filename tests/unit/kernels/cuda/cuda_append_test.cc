// What a layer stores on a GPU: the one kernel of decode steps against the separate ops, and the
// 8-bit cache and index against their scalar definition (kernels/quantize.h), to the last bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/params/layer.h"
#include "kernels/quantize.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

using cuda::KvTile;
using enum IndexKind;
using ::testing::Values;

struct AppendShape {
  KvGeometry geometry;
  int32_t group = 1;
};

// Sequences with keys before the step; in the step each brings one row, if not more.
struct Cache {
  AppendShape shape;
  std::vector<int32_t> positions;  // of the last row
  std::vector<int32_t> rows;       // in the step
  std::vector<std::vector<int32_t>> tables;
  std::vector<HostTensor> k;  // [position + 1, HKV * d] of each sequence
  std::vector<HostTensor> v;
  HostTensor metric;  // [HKV * d, d]; of kind outlier
  HostTensor centre;  // [HKV, d]; likewise
  HostTensor q;       // [S, HQ * d]
  HostTensor weight;
  std::vector<float> bias;
  std::vector<float> frozen;  // of every third sequence
  int32_t num_blocks = 0;

  int32_t kv_cols() const { return shape.geometry.num_kv_heads * shape.geometry.head_dim; }
  int32_t first_position(size_t s) const { return positions[s] + 1 - rows[s]; }
  int32_t num_heads() const { return shape.geometry.num_kv_heads * shape.group; }
};

Cache MakeCache(const AppendShape& shape, uint64_t seed) {
  Random random(seed);
  Cache cache = {.shape = shape};
  const int32_t b = shape.geometry.block_size;
  const int32_t heads = cache.num_heads();
  const int64_t q_cols = int64_t{heads} * shape.geometry.head_dim;
  for (int i = 0; i < 21; ++i) {
    // A third fill a block in the step.
    const auto position = static_cast<int32_t>(i % 3 == 1 ? Uniform(random, 1, 4) * b - 1
                                                          : Uniform(random, 0, 3 * b));
    cache.positions.push_back(position);
    cache.rows.push_back(1);
    const auto deviation = static_cast<float>(std::exp2(UniformReal(random, -4.0, 4.0)));
    cache.k.push_back(Normal(random, position + 1, cache.kv_cols(), deviation));
    cache.v.push_back(Normal(random, position + 1, cache.kv_cols()));
    cache.tables.emplace_back(static_cast<size_t>(position / b + 1));
    cache.num_blocks += position / b + 1;
  }
  std::fill_n(cache.v[0].row(0), cache.kv_cols(), 0.0f);
  std::vector<int32_t> blocks(static_cast<size_t>(cache.num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (std::vector<int32_t>& table : cache.tables) {
    for (int32_t& block : table) {
      block = blocks.back();
      blocks.pop_back();
    }
  }
  if (shape.geometry.index == IndexKind::kOutlier) {
    const int32_t d = shape.geometry.head_dim;
    cache.metric = Normal(random, cache.kv_cols(), d, 0.1f);
    for (int32_t row = 0; row < cache.kv_cols(); ++row) {
      for (int32_t i = 0; i < row % d; ++i) {  // symmetric
        cache.metric.row(row)[i] = cache.metric.row(row / d * d + i)[row % d];
      }
      cache.metric.row(row)[row % d] += 4.0f;
    }
    cache.centre = Normal(random, shape.geometry.num_kv_heads, d);
  }
  cache.q = Normal(random, static_cast<int64_t>(cache.tables.size()), q_cols);
  cache.weight = Normal(random, heads, q_cols, 0.05f);
  cache.bias = Normal(random, 1, heads).data;
  cache.frozen = Normal(random, 1, heads).data;
  return cache;
}

struct Stored {
  std::vector<std::byte> tiles;
  std::vector<std::byte> records;
  HostTensor q;  // rotated
  HostTensor k;
  HostTensor thresholds;
};

enum class Form { kTogether, kSeparately };
// What the layer does to queries and keys: RoPE, nothing, or norms of heads and then RoPE.
enum class Turn { kRotated, kUnrotated, kNormed };
// Whether the step's tensors have rows for its padding too.
enum class Room { kRows, kPaddedRows };
// What rows of padding bring.
constexpr float kPadding = 7.0f;

class CudaAppend : public ::testing::TestWithParam<AppendShape> {
 protected:
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }

  KvLayerView Empty(const Cache& cache) {
    const KvLayout layout = *device_->Layout(cache.shape.geometry);
    const auto blocks = static_cast<size_t>(cache.num_blocks);
    const auto put = [&](const HostTensor& tensor) -> const float* {
      return tensor.data.empty() ? nullptr : device_.Put(tensor.data);
    };
    return {device_.Allocate(layout.tile_bytes * blocks),
            device_.Allocate(layout.record_bytes * blocks), put(cache.metric), put(cache.centre)};
  }

  // Stores the first `keys[s]` keys and values of every sequence, as they are, in one step.
  void Fill(const Cache& cache, const std::vector<int32_t>& keys, const KvLayerView& kv) {
    std::vector<SequenceRows> rows;
    HostTensor k(std::accumulate(keys.begin(), keys.end(), 0), cache.kv_cols());
    HostTensor v = k;
    int32_t begin = 0;
    for (size_t s = 0; s < keys.size(); ++s) {
      if (keys[s] == 0) continue;
      const auto count = static_cast<size_t>(int64_t{keys[s]} * k.cols);
      std::copy_n(cache.k[s].row(0), count, k.row(begin));
      std::copy_n(cache.v[s].row(0), count, v.row(begin));
      rows.push_back({.row_begin = begin,
                      .num_rows = keys[s],
                      .kind = RowKind::kPrefill,
                      .block_table = cache.tables[s]});
      begin += keys[s];
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(begin));
    const TensorView k_view = device_.Put(k);
    const TensorView v_view = device_.Put(v);
    device_->Plan({tokens, rows});
    device_->AppendKv({k_view, v_view, cache.shape.geometry, kv});
    ASSERT_EQ(device_->Finish(), absl::OkStatus());
  }

  // The step's rows of `sequences`, on top of what came before them.
  Stored Step(const Cache& cache, const std::vector<size_t>& sequences, Form form,
              Room room = Room::kRows, Turn turn = Turn::kRotated) {
    const KvLayerView kv = Empty(cache);
    std::vector<SequenceRows> rows;
    std::vector<int32_t> before;
    for (size_t s = 0; s < cache.rows.size(); ++s) before.push_back(cache.first_position(s));
    Fill(cache, before, kv);
    int64_t count = 0;
    for (const size_t s : sequences) count += cache.rows[s];
    const int64_t num_rows = room == Room::kRows ? count : device_->PaddedRows(count);
    HostTensor q(num_rows, cache.q.cols);
    HostTensor k(num_rows, cache.kv_cols());
    std::ranges::fill(q.data, kPadding);
    std::ranges::fill(k.data, kPadding);
    HostTensor v = k;
    int64_t r = 0;
    for (const size_t s : sequences) {
      const int32_t first = cache.first_position(s);
      const int64_t begin = r;
      for (int32_t i = 0; i < cache.rows[s]; ++i, ++r) {
        const auto any = (static_cast<int64_t>(s) + i) % cache.q.rows;
        std::copy_n(cache.q.row(any), q.cols, q.row(r));
        std::copy_n(cache.k[s].row(first + i), k.cols, k.row(r));
        std::copy_n(cache.v[s].row(first + i), k.cols, v.row(r));
      }
      rows.push_back({.row_begin = static_cast<int32_t>(begin),
                      .num_rows = cache.rows[s],
                      .position = first,
                      .rope_theta = s % 2 == 0 ? 1e4f : 5e5f,
                      .frozen_thresholds = s % 3 == 2 ? cache.frozen.data() : nullptr,
                      .block_table = cache.tables[s]});
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(count));
    const TensorView q_view = device_.Put(q);
    const TensorView k_view = device_.Put(k);
    const TensorView v_view = device_.Put(v);
    const TensorView thresholds = device_.Empty(num_rows, cache.num_heads());
    const float* weight = device_.Put(cache.weight.data);
    const float* bias = device_.Put(cache.bias);
    const KvLayout layout = *device_->Layout(cache.shape.geometry);
    const auto blocks = static_cast<size_t>(cache.num_blocks);
    const auto separate = [&] {  // a download runs what was recorded
      if (form == Form::kSeparately) device_.Get(kv.tiles, 1);
    };
    const int32_t d = cache.shape.geometry.head_dim;
    std::vector<float> factors(static_cast<size_t>(d));
    for (size_t i = 0; i < factors.size(); ++i) factors[i] = 0.5f + static_cast<float>(i % 7);
    const float* q_norm = device_.Put(factors);
    std::ranges::reverse(factors);
    const float* k_norm = device_.Put(factors);
    device_->Plan({tokens, rows});
    if (turn == Turn::kNormed) {
      device_->NormHeads({q_view, k_view, q_norm, k_norm, d, 1e-5f});
      separate();
    }
    if (turn != Turn::kUnrotated) device_->Rope({q_view, k_view, d});
    separate();
    device_->AppendKv({k_view, v_view, cache.shape.geometry, kv});
    separate();
    device_->PredictThresholds({0, q_view, weight, bias, thresholds});
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    Stored stored = {device_.Get(kv.tiles, layout.tile_bytes * blocks),
                     device_.Get(kv.records, layout.record_bytes * blocks), device_.Get(q_view),
                     device_.Get(k_view), device_.Get(thresholds)};
    if (turn == Turn::kNormed) {
      // The separate ops norm padding rows too, which nobody reads.
      for (HostTensor* tensor : {&stored.q, &stored.k}) {
        tensor->data.resize(static_cast<size_t>(count * tensor->cols));
        tensor->rows = count;
      }
    }
    return stored;
  }

  Device device_{{"cuda"}};
};

std::vector<size_t> AllOf(const Cache& cache) {
  std::vector<size_t> sequences(cache.tables.size());
  std::iota(sequences.begin(), sequences.end(), 0);
  return sequences;
}

void ExpectTheSame(const Stored& together, const Stored& separately) {
  EXPECT_TRUE(together.tiles == separately.tiles);
  EXPECT_TRUE(together.records == separately.records);
  EXPECT_EQ(together.q.data, separately.q.data);
  EXPECT_EQ(together.k.data, separately.k.data);
  for (size_t i = 0; i < separately.thresholds.data.size(); ++i) {
    const float want = separately.thresholds.data[i];
    EXPECT_NEAR(together.thresholds.data[i], want, 1e-5 * (1.0 + std::abs(want))) << i;
  }
}

TEST_P(CudaAppend, OneKernelStoresWhatTheSeparateOpsStore) {
  const Cache cache = MakeCache(GetParam(), 31);
  ExpectTheSame(Step(cache, AllOf(cache), Form::kTogether),
                Step(cache, AllOf(cache), Form::kSeparately));
}

// Queries and keys of a layer without RoPE stay as they are, to the last bit.
TEST_P(CudaAppend, OneKernelStoresWhatTheSeparateOpsStoreWithoutRope) {
  const Cache cache = MakeCache(GetParam(), 37);
  const auto step = [&](Form form, Room room) {
    return Step(cache, AllOf(cache), form, room, Turn::kUnrotated);
  };
  for (const Room room : {Room::kRows, Room::kPaddedRows}) {
    const Stored together = step(Form::kTogether, room);
    ExpectTheSame(together, step(Form::kSeparately, room));
    for (size_t s = 0; s < cache.tables.size(); ++s) {
      const auto row = static_cast<int64_t>(s);
      EXPECT_TRUE(
          std::equal(cache.q.row(row), cache.q.row(row) + cache.q.cols, together.q.row(row)))
          << s;
      const float* k = cache.k[s].row(cache.positions[s]);
      EXPECT_TRUE(std::equal(k, k + cache.kv_cols(), together.k.row(row))) << s;
    }
  }
}

TEST_P(CudaAppend, OneKernelStoresWhatTheSeparateOpsStoreWithNormsOfHeads) {
  const Cache cache = MakeCache(GetParam(), 38);
  const auto step = [&](Form form) {
    return Step(cache, AllOf(cache), form, Room::kRows, Turn::kNormed);
  };
  ExpectTheSame(step(Form::kTogether), step(Form::kSeparately));
}

// Rows of drafts: blocks fill with the last of them, in the middle, or not.
TEST_P(CudaAppend, OneKernelStoresWhatTheSeparateOpsStoreOfSeveralRows) {
  Cache cache = MakeCache(GetParam(), 39);
  const int32_t b = cache.shape.geometry.block_size;
  for (size_t s = 0; s < cache.rows.size(); ++s) {
    if (s % 3 == 1 && s % 2 == 0 && cache.positions[s] >= b) cache.positions[s] -= b - 3;
    const auto rows = static_cast<int32_t>(s % 3 == 1 ? 5 + s % 4 : 1 + s % 8);
    cache.rows[s] = std::min(rows, cache.positions[s] + 1);
  }
  for (const Turn turn : {Turn::kRotated, Turn::kUnrotated, Turn::kNormed}) {
    for (const Room room : {Room::kRows, Room::kPaddedRows}) {
      ExpectTheSame(Step(cache, AllOf(cache), Form::kTogether, room, turn),
                    Step(cache, AllOf(cache), Form::kSeparately, room, turn));
    }
  }
}

TEST_P(CudaAppend, RowsDoNotDependOnTheirBatch) {
  const Cache cache = MakeCache(GetParam(), 32);
  const Stored all = Step(cache, AllOf(cache), Form::kTogether);
  const KvTile tile(cache.shape.geometry);
  for (size_t s = 0; s < cache.tables.size(); s += 4) {
    const Stored alone = Step(cache, {s}, Form::kTogether);
    const auto block = static_cast<int64_t>(cache.tables[s].back());
    const auto tile_bytes = static_cast<int64_t>(tile.block_bytes());
    const auto record_bytes = static_cast<int64_t>(tile.record_bytes());
    EXPECT_TRUE(std::equal(alone.tiles.begin() + block * tile_bytes,
                           alone.tiles.begin() + (block + 1) * tile_bytes,
                           all.tiles.begin() + block * tile_bytes));
    EXPECT_TRUE(std::equal(alone.records.begin() + block * record_bytes,
                           alone.records.begin() + (block + 1) * record_bytes,
                           all.records.begin() + block * record_bytes));
    for (int32_t h = 0; h < cache.num_heads(); ++h) {
      EXPECT_EQ(alone.thresholds.row(0)[h], all.thresholds.row(static_cast<int64_t>(s))[h])
          << "sequence " << s << ", head " << h;
    }
  }
}

// 24 rows for 21 and for 17: padding beside rows of sequences, and where there are none.
TEST_P(CudaAppend, PaddingIsLeftAloneAndHasZerosAsThresholds) {
  const Cache cache = MakeCache(GetParam(), 35);
  for (const size_t count : {size_t{21}, size_t{17}}) {
    std::vector<size_t> sequences = AllOf(cache);
    ASSERT_GE(sequences.size(), count);
    sequences.resize(count);
    for (const Form form : {Form::kTogether, Form::kSeparately}) {
      SCOPED_TRACE(std::to_string(count) + (form == Form::kTogether ? " together" : " separately"));
      const Stored without = Step(cache, sequences, form);
      const Stored with = Step(cache, sequences, form, Room::kPaddedRows);
      EXPECT_TRUE(with.tiles == without.tiles);
      EXPECT_TRUE(with.records == without.records);
      const auto expect = [&](const HostTensor& got, const HostTensor& want, float padding) {
        ASSERT_EQ(got.rows, 24);
        HostTensor padded(got.rows, got.cols);
        std::ranges::fill(padded.data, padding);
        std::ranges::copy(want.data, padded.data.begin());
        EXPECT_EQ(got.data, padded.data);
      };
      expect(with.q, without.q, kPadding);
      expect(with.k, without.k, kPadding);
      expect(with.thresholds, without.thresholds, 0.0f);
    }
  }
}

// Puts what has no scale by its magnitude into one KV head's K and V of most sequences, in the step
// and before it: NaN, infinities, or nothing but zeros.
void PutExceptions(Cache& cache) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto d = static_cast<size_t>(cache.shape.geometry.head_dim);
  for (size_t s = 0; s < cache.tables.size(); ++s) {
    const size_t head = s % static_cast<size_t>(cache.shape.geometry.num_kv_heads);
    for (const int32_t t : {0, cache.positions[s]}) {
      for (HostTensor* tensor : {&cache.k[s], &cache.v[s]}) {
        const std::span<float> row(tensor->row(t) + head * d, d);
        float& element = row[7 * s % d];
        if (s % 5 == 1) element = std::numeric_limits<float>::quiet_NaN();
        if (s % 5 == 2) element = kInfinity;
        if (s % 5 == 3) element = -kInfinity;
        if (s % 5 == 4) std::ranges::fill(row, 0.0f);
      }
    }
  }
}

// NaN has two codes, which differ in the sign.
bool SameE4M3(uint8_t got, uint8_t want) {
  return (want & 0x7F) == 0x7F ? (got & 0x7F) == 0x7F : got == want;
}

TEST_P(CudaAppend, EightBitTilesAreTheQuantizedRows) {
  if (GetParam().geometry.dtype != DType::kFloat8E4M3) GTEST_SKIP() << "not an 8-bit cache";
  Cache cache = MakeCache(GetParam(), 33);
  PutExceptions(cache);
  const Stored stored = Step(cache, AllOf(cache), Form::kTogether);
  const KvGeometry& geometry = cache.shape.geometry;
  const KvTile tile(geometry);
  const auto d = static_cast<size_t>(geometry.head_dim);
  const int32_t b = geometry.block_size;
  int wrong = 0;
  for (size_t s = 0; s < cache.tables.size(); ++s) {
    for (int32_t t = 0; t <= cache.positions[s]; ++t) {
      const bool last = t == cache.positions[s];
      const float* k = last ? stored.k.row(static_cast<int64_t>(s)) : cache.k[s].row(t);
      const int32_t block = cache.tables[s][static_cast<size_t>(t / b)];
      for (int32_t h = 0; h < geometry.num_kv_heads; ++h) {
        for (const bool value : {false, true}) {
          const float* row = (value ? cache.v[s].row(t) : k) + static_cast<size_t>(h) * d;
          std::vector<uint8_t> want(d);
          const int32_t exponent = QuantizeRow({row, d}, want);
          const std::byte* at = stored.tiles.data() + (value ? tile.V(block, h) : tile.K(block, h));
          for (size_t i = 0; i < d; ++i) {
            const auto c = static_cast<int32_t>(i);
            const size_t offset = value ? tile.ValueWord(t % b / 4, c) + static_cast<size_t>(t % 4)
                                        : tile.Element(t % b, c);
            wrong += SameE4M3(std::to_integer<uint8_t>(at[offset]), want[i]) ? 0 : 1;
          }
          const size_t scale = tile.Exponents(block, h) + static_cast<size_t>(value ? b : 0) +
                               static_cast<size_t>(t % b);
          wrong += std::to_integer<int8_t>(stored.tiles[scale]) == exponent ? 0 : 1;
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0) << "bytes differ";
}

TEST_P(CudaAppend, EightBitRecordsAreTheQuantizedFloat16Ones) {
  const Cache narrow = MakeCache(GetParam(), 34);
  const KvGeometry& shape = narrow.shape.geometry;
  if (shape.index != IndexKind::kMoment || shape.index_dtype != DType::kInt8) {
    GTEST_SKIP() << "not an 8-bit index of kind moment";
  }
  Cache wide = narrow;
  wide.shape.geometry.index_dtype = DType::kFloat16;
  const KvLayerView narrow_kv = Empty(narrow);
  const KvLayerView wide_kv = Empty(wide);
  Fill(narrow, narrow.positions, narrow_kv);
  Fill(wide, wide.positions, wide_kv);
  const KvGeometry& geometry = narrow.shape.geometry;
  const auto d = static_cast<size_t>(geometry.head_dim);
  for (size_t s = 0; s < narrow.tables.size(); ++s) {
    for (int32_t j = 0; j < narrow.positions[s] / geometry.block_size; ++j) {
      const int32_t block = narrow.tables[s][static_cast<size_t>(j)];
      for (int32_t h = 0; h < geometry.num_kv_heads; ++h) {
        const BlockRecord from = device_->ReadRecord(wide.shape.geometry, wide_kv, block, h);
        const BlockRecord got = device_->ReadRecord(geometry, narrow_kv, block, h);
        std::vector<int8_t> mu8(d);
        std::vector<uint8_t> sigma8(d);
        const RecordScales scales = QuantizeRecord(from.mu, from.sigma, mu8, sigma8);
        for (size_t i = 0; i < d; ++i) {
          ASSERT_EQ(got.mu[i], scales.mu_scale * mu8[i]) << "block " << j << " of " << s;
          ASSERT_EQ(got.sigma[i], std::ldexp(E4M3ToFloat(sigma8[i]), scales.sigma_exponent));
        }
        EXPECT_NEAR(got.mu_error, scales.mu_error, 1e-6 * scales.mu_error);
        EXPECT_EQ(got.max_norm, from.max_norm);
        EXPECT_EQ(got.v_total, from.v_total);
      }
    }
  }
}

TEST_P(CudaAppend, RecordsOfOutliersTellKeysThatAreNotFinite) {
  Cache cache = MakeCache(GetParam(), 36);
  const KvGeometry& geometry = cache.shape.geometry;
  if (geometry.index != IndexKind::kOutlier || geometry.dtype == DType::kFloat8E4M3) {
    GTEST_SKIP() << "no such records";
  }
  PutExceptions(cache);
  const KvLayerView kv = Empty(cache);
  Fill(cache, cache.positions, kv);
  for (size_t s = 0; s < cache.tables.size(); ++s) {
    if (cache.positions[s] < geometry.block_size) continue;
    const auto head = static_cast<int32_t>(s % static_cast<size_t>(geometry.num_kv_heads));
    for (int32_t h = 0; h < geometry.num_kv_heads; ++h) {
      const BlockRecord record = device_->ReadRecord(geometry, kv, cache.tables[s][0], h);
      const bool finite = std::isfinite(record.step) && std::isfinite(record.outlier_step);
      const bool wanted = h != head || s % 5 == 0 || s % 5 == 4;
      EXPECT_EQ(finite, wanted) << "sequence " << s << ", head " << h;
    }
  }
}

TEST_P(CudaAppend, CachesThatNoKernelReadsAreRefused) {
  KvGeometry geometry = GetParam().geometry;
  EXPECT_EQ(device_->Layout(geometry).status(), absl::OkStatus());
  geometry.dtype = DType::kFloat8E4M3;
  geometry.head_dim = 32;
  const absl::Status refused = device_->Layout(geometry).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(refused.message().find("kv_dtype"), absl::string_view::npos) << refused;
}

// HKV, d, b, sub-block, types, group. That with 3 KV heads has no kernel
// of its own for decode steps.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaAppend,
    Values(AppendShape{{4, 64, 64, 4, DType::kFloat16, kMoment, DType::kFloat16}, 8},
           AppendShape{{4, 64, 64, 4, DType::kFloat8E4M3, kMoment, DType::kInt8}, 8},
           AppendShape{{8, 128, 32, 4, DType::kFloat8E4M3, kMoment, DType::kFloat16}, 4},
           AppendShape{{2, 96, 16, 0, DType::kFloat8E4M3, kMoment, DType::kInt8}, 5},
           AppendShape{{1, 128, 128, 4, DType::kBFloat16, kMoment, DType::kInt8}, 8},
           AppendShape{{8, 32, 24, 4, DType::kFloat32, kMoment, DType::kInt8}, 3},
           AppendShape{{3, 64, 16, 0, DType::kFloat16, kMoment, DType::kInt8}, 7},
           AppendShape{{2, 256, 8, 4, DType::kFloat32, kMoment, DType::kFloat16}, 2},
           AppendShape{{4, 64, 64, 4, DType::kFloat16, kOutlier, DType::kInt8}, 8},
           AppendShape{{2, 128, 32, 4, DType::kFloat8E4M3, kOutlier, DType::kInt8}, 4},
           AppendShape{{1, 128, 128, 0, DType::kBFloat16, kOutlier, DType::kInt8}, 8},
           AppendShape{{8, 96, 20, 4, DType::kFloat16, kOutlier, DType::kInt8}, 3},
           AppendShape{{2, 256, 100, 4, DType::kFloat32, kOutlier, DType::kInt8}, 2},
           AppendShape{{4, 256, 64, 4, DType::kBFloat16, kMoment, DType::kFloat16}, 2},
           AppendShape{{1, 256, 128, 4, DType::kFloat8E4M3, kMoment, DType::kInt8}, 4},
           AppendShape{{2, 256, 32, 0, DType::kFloat8E4M3, kOutlier, DType::kInt8}, 2}),
    [](const ::testing::TestParamInfo<AppendShape>& shape) {
      const KvGeometry& g = shape.param.geometry;
      return std::string(Name(g.dtype)) + "_" +
             std::string(g.index == kOutlier ? "outlier" : Name(g.index_dtype)) + "_d" +
             std::to_string(g.head_dim) + "_b" + std::to_string(g.block_size);
    });

}  // namespace
}  // namespace eta::testing
