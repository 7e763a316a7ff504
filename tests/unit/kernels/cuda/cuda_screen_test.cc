// Block selection on a GPU with both kinds of index, in the order of a layer's ops: what the
// contract asks of every block (in double, from the records that the device wrote), on geometries
// of every shape and on records of every extreme.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/params/layer.h"
#include "kernels/params/selection.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

using SelectedBlock = std::pair<uint32_t, uint32_t>;        // ordinal, heads
using Selection = std::vector<std::vector<SelectedBlock>>;  // [R * HKV]

// A decode sequence; its last rows are those of the step.
struct ScreenSequence {
  int32_t position = 0;
  int32_t num_rows = 1;
  AttentionOptions options;
  HostTensor k;                   // [position + num_rows, HKV * d]; V is the same
  std::vector<float> thresholds;  // [HQ]
  std::vector<float> head_z;      // [HQ]; empty: that of the options

  float z(int32_t head) const {
    return head_z.empty() ? options.z : head_z[static_cast<size_t>(head)];
  }
  int32_t FullBlocks(int32_t row, int32_t block_size) const {
    return (position + row + 1) / block_size;
  }
};

struct Case {
  KvGeometry geometry;
  int32_t group = 1;
  std::vector<ScreenSequence> sequences;
  HostTensor q;  // [R, HQ * d]

  int32_t num_heads() const { return geometry.num_kv_heads * group; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(geometry.head_dim)); }
};

// The history appended in a step before; then one step as a model runs it: the rows' keys and their
// records, thresholds, selection, with nothing waiting in between.
class ScreenedStep {
 public:
  ScreenedStep(Device& device, const Case& made) : device_(device), made_(made) {
    const int32_t b = made.geometry.block_size;
    std::vector<int32_t> physical;
    for (const ScreenSequence& sequence : made.sequences) {
      tables_.emplace_back(static_cast<size_t>((sequence.k.rows + b - 1) / b));
      physical.resize(physical.size() + tables_.back().size());
    }
    std::iota(physical.begin(), physical.end(), 0);
    Random random(physical.size());
    std::ranges::shuffle(physical, random);
    const KvLayout layout = *device->Layout(made.geometry);
    kv_ = {device.Allocate(layout.tile_bytes * physical.size()),
           device.Allocate(layout.record_bytes * physical.size())};
    for (std::vector<int32_t>& table : tables_) {
      for (int32_t& block : table) {
        block = physical.back();
        physical.pop_back();
      }
    }
    Append(Part::kHistory);
    EXPECT_EQ(device->Finish(), absl::OkStatus());
    Append(Part::kStep);
    Select();
  }

  const Selection& selection() const { return selection_; }
  BlockRecord Record(size_t sequence, int32_t ordinal, int32_t kv_head) {
    return device_->ReadRecord(made_.geometry, kv_, tables_[sequence][static_cast<size_t>(ordinal)],
                               kv_head);
  }

 private:
  enum class Part { kHistory, kStep };

  // Plans the step of that part, too.
  void Append(Part part) {
    const int64_t cols = int64_t{made_.geometry.num_kv_heads} * made_.geometry.head_dim;
    HostTensor k(0, cols);
    rows_.clear();
    for (size_t s = 0; s < made_.sequences.size(); ++s) {
      const ScreenSequence& sequence = made_.sequences[s];
      const int32_t begin = part == Part::kHistory ? 0 : sequence.position;
      const int32_t end = part == Part::kHistory ? sequence.position : begin + sequence.num_rows;
      if (begin == end) continue;
      rows_.push_back({.row_begin = static_cast<int32_t>(k.rows),
                       .num_rows = end - begin,
                       .position = begin,
                       .kind = part == Part::kHistory ? RowKind::kPrefill : RowKind::kDecode,
                       .attention = sequence.options,
                       .frozen_thresholds = sequence.thresholds.data(),
                       .head_z = sequence.head_z.empty() ? nullptr : sequence.head_z.data(),
                       .block_table = tables_[s]});
      k.data.insert(k.data.end(), sequence.k.row(begin), sequence.k.row(end));
      k.rows += end - begin;
    }
    if (rows_.empty()) return;
    tokens_.assign(static_cast<size_t>(k.rows), 0);
    device_->Plan({tokens_, rows_});
    const TensorView view = device_.Put(k, 3);
    device_->AppendKv({.k = view, .v = view, .geometry = made_.geometry, .kv = kv_});
  }

  void Select() {
    const int32_t heads = made_.num_heads();
    const auto lists = static_cast<size_t>(made_.q.rows * made_.geometry.num_kv_heads);
    int64_t capacity = 1;
    for (const std::vector<int32_t>& table : tables_) {
      capacity = std::max(capacity, static_cast<int64_t>(table.size()));
    }
    const std::vector<uint32_t> unset(lists * static_cast<size_t>(capacity), 0xFFFFFFFFu);
    const BlockSelection selection = {device_.Put(unset), device_.Put(unset),
                                      device_.Put(std::vector<int32_t>(lists, -1)), capacity,
                                      made_.q.rows};
    const TensorView q = device_.Put(made_.q, 4);
    const TensorView thresholds = device_.Empty(made_.q.rows, heads, 1);
    std::vector<int32_t> attended(static_cast<size_t>(made_.q.rows * heads));
    std::vector<int32_t> read(lists);
    device_->PredictThresholds(
        {.layer = 0, .q = q, .weight = nullptr, .bias = nullptr, .out = thresholds});
    device_->SelectBlocks({.layer = 0,
                           .q = q,
                           .thresholds = thresholds,
                           .num_query_heads = heads,
                           .geometry = made_.geometry,
                           .kv = kv_,
                           .softmax_scale = made_.scale(),
                           .selection = selection,
                           .counts = {attended.data(), read.data()}});
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    const std::vector<int32_t> counts = device_.Get(selection.counts, lists);
    const std::vector<uint32_t> blocks = device_.Get(selection.blocks, unset.size());
    const std::vector<uint32_t> masks = device_.Get(selection.heads, unset.size());
    for (size_t list = 0; list < lists; ++list) {
      std::vector<SelectedBlock>& selected = selection_.emplace_back();
      for (size_t n = 0; n < static_cast<size_t>(std::max(counts[list], 0)); ++n) {
        const size_t at = list * static_cast<size_t>(capacity) + n;
        selected.emplace_back(blocks[at], masks[at]);
      }
    }
  }

  Device& device_;
  const Case& made_;
  std::vector<std::vector<int32_t>> tables_;
  KvLayerView kv_;
  std::vector<int32_t> tokens_;  // of the planned step, until it has finished
  std::vector<SequenceRows> rows_;
  Selection selection_;
};

// Bounds of one row and head, and how far rounding in float32 may move each of them.
struct Bounds {
  std::vector<double> values;
  std::vector<double> slack;
};

// [R * HQ]
std::vector<Bounds> AllBounds(const Case& made, ScreenedStep& step) {
  const int32_t d = made.geometry.head_dim;
  const int32_t b = made.geometry.block_size;
  std::vector<Bounds> all(static_cast<size_t>(made.q.rows * made.num_heads()));
  int64_t first_row = 0;
  for (size_t s = 0; s < made.sequences.size(); ++s) {
    const ScreenSequence& sequence = made.sequences[s];
    const int32_t last_full = sequence.FullBlocks(sequence.num_rows - 1, b);
    for (int32_t kv_head = 0; kv_head < made.geometry.num_kv_heads; ++kv_head) {
      for (int32_t j = 0; j < last_full; ++j) {
        const BlockRecord record = step.Record(s, j, kv_head);
        for (int32_t i = 0; i < sequence.num_rows; ++i) {
          if (j >= sequence.FullBlocks(i, b)) continue;
          for (int32_t g = 0; g < made.group; ++g) {
            const int32_t head = kv_head * made.group + g;
            const float* q = made.q.row(first_row + i) + int64_t{head} * d;
            double mean = 0.0, magnitude = 0.0, variance = 0.0, squares = 0.0;
            double outlier = 0.0, size = 0.0;
            for (int32_t c = 0; c < d; ++c) {
              const auto at = static_cast<size_t>(c);
              const double x = q[c];
              mean += x * record.mu[at];
              magnitude += std::abs(x * record.mu[at]);
              variance += x * x * record.sigma[at] * record.sigma[at];
              squares += x * x;
              size += std::abs(x);
              if (!record.outlier.empty()) outlier += x * record.outlier[at];
            }
            const double norm = std::sqrt(squares);
            const double width = norm * record.mu_error + record.step / 2 * size +
                                 sequence.z(head) * std::sqrt(variance);
            double bound = std::min(mean + width, norm * record.max_norm);
            if (!record.outlier.empty()) {
              outlier += record.outlier_step / 2 * size;
              bound = std::max(mean + width, outlier);
              magnitude += std::abs(outlier) + size * record.outlier_step;
            }
            Bounds& bounds = all[static_cast<size_t>((first_row + i) * made.num_heads() + head)];
            bounds.values.push_back(made.scale() * bound);
            bounds.slack.push_back(1e-5 * (made.scale() * (magnitude + width) + 1e-3));
          }
        }
      }
    }
    first_row += sequence.num_rows;
  }
  return all;
}

bool IsClear(const Bounds& bounds, double threshold, const AttentionOptions& options) {
  for (size_t j = 0; j < bounds.values.size(); ++j) {
    if (std::abs(bounds.values[j] - threshold) <= bounds.slack[j]) return false;
  }
  // Where a block is rescued, it must be the best one without doubt.
  const auto n = static_cast<int32_t>(bounds.values.size());
  const int32_t chunk = std::min(options.rescue_chunk, n);
  if (chunk < 2 || options.sink_blocks > 0 || n - options.pinned_blocks < chunk) return true;
  const auto first = bounds.values.begin();
  const auto best = std::max_element(first, first + chunk);
  if (*best >= threshold) return true;
  for (auto other = first; other != first + chunk; ++other) {
    const double doubt = bounds.slack[static_cast<size_t>(other - first)];
    if (other != best && *best - *other <= 2 * doubt) return false;
  }
  return true;
}

// Thresholds that are clear of the bounds of both indexes in every row.
void PlaceThresholds(Random& random, Case& made, const std::vector<Bounds>& wide,
                     const std::vector<Bounds>& narrow) {
  const auto heads = static_cast<size_t>(made.num_heads());
  size_t first_row = 0;
  for (ScreenSequence& sequence : made.sequences) {
    const auto rows = static_cast<size_t>(sequence.num_rows);
    for (size_t h = 0; h < heads; ++h) {
      const auto clear = [&](double threshold) {
        for (size_t i = 0; i < rows; ++i) {
          const size_t at = (first_row + i) * heads + h;
          if (!IsClear(wide[at], threshold, sequence.options) ||
              !IsClear(narrow[at], threshold, sequence.options)) {
            return false;
          }
        }
        return true;
      };
      const std::vector<double>& last = wide[(first_row + rows - 1) * heads + h].values;
      float threshold = -1e30f;  // admits all
      for (int attempt = 0; attempt < 200 && !last.empty(); ++attempt) {
        const auto pick = Uniform(random, 0, static_cast<int64_t>(last.size()) - 1);
        const double shift = Uniform(random, 0, 4) == 0 ? 50.0 : UniformReal(random, -0.3, 0.3);
        const auto wanted = static_cast<float>(last[static_cast<size_t>(pick)] + shift);
        if (!clear(wanted)) continue;
        threshold = wanted;
        break;
      }
      sequence.thresholds[h] = threshold;
    }
    first_row += rows;
  }
}

Selection Expected(const Case& made, const std::vector<Bounds>& bounds) {
  Selection expected;
  size_t row = 0;
  for (const ScreenSequence& sequence : made.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i, ++row) {
      for (int32_t kv_head = 0; kv_head < made.geometry.num_kv_heads; ++kv_head) {
        const int32_t n = sequence.FullBlocks(i, made.geometry.block_size);
        std::vector<uint32_t> masks(static_cast<size_t>(n));
        for (int32_t g = 0; g < made.group; ++g) {
          const auto head = static_cast<size_t>(kv_head * made.group + g);
          const std::vector<double>& values =
              bounds[row * static_cast<size_t>(made.num_heads()) + head].values;
          const int32_t chunk = std::min(sequence.options.rescue_chunk, n);
          bool early = false;
          for (int32_t j = 0; j < n; ++j) {
            const bool admits = j < sequence.options.sink_blocks ||
                                j >= n - sequence.options.pinned_blocks ||
                                values[static_cast<size_t>(j)] >= sequence.thresholds[head];
            if (admits) masks[static_cast<size_t>(j)] |= 1u << g;
            early = early || (admits && j < chunk);
          }
          if (early || chunk == 0) continue;
          const auto best = std::max_element(values.begin(), values.begin() + chunk);
          masks[static_cast<size_t>(best - values.begin())] |= 1u << g;
        }
        std::vector<SelectedBlock>& list = expected.emplace_back();
        for (uint32_t j = 0; j < masks.size(); ++j) {
          if (masks[j] == 0) continue;
          list.emplace_back(j, sequence.options.shared_reads ? (1u << made.group) - 1 : masks[j]);
        }
      }
    }
  }
  return expected;
}

// The first list that differs, in words; empty if there is none.
std::string Difference(const Selection& got, const Selection& want) {
  if (got.size() != want.size()) return "another number of lists";
  for (size_t list = 0; list < want.size(); ++list) {
    if (got[list] == want[list]) continue;
    const auto [a, b] = std::ranges::mismatch(got[list], want[list]);
    std::string text = "list " + std::to_string(list) + ": ";
    const auto add = [&](const char* who, const auto at, const auto end) {
      text += who;
      text += at == end ? " ends"
                        : " has block " + std::to_string(at->first) + " for heads " +
                              std::to_string(at->second);
    };
    add("it", a, got[list].end());
    add(" where the other", b, want[list].end());
    return text;
  }
  return "";
}

// Whether each list of `more` has all blocks of its list of `less`, for the same heads or more.
bool Contains(const Selection& more, const Selection& less) {
  for (size_t list = 0; list < less.size(); ++list) {
    for (const auto& [block, heads] : less[list]) {
      const auto found = std::ranges::find(more[list], block, &SelectedBlock::first);
      if (found == more[list].end() || (heads & ~found->second) != 0) return false;
    }
  }
  return true;
}

enum class Keys { kOrdinary, kExtreme };

// Multiples of 1/64, whose sums are exact. Extreme ones make, block by block, ordinary records,
// sigma zero, mu zero, both, spreads of 2^20 between coordinates, and numbers below float16's
// normal ones.
HostTensor MakeKeys(Random& random, Keys kind, int64_t rows, int64_t cols, int32_t block_size) {
  HostTensor keys(rows, cols);
  std::vector<float> drift(static_cast<size_t>(cols));
  std::vector<float> power(static_cast<size_t>(cols), 1.0f);
  int64_t block_kind = 0;
  for (int64_t t = 0; t < rows; ++t) {
    const bool first = t % block_size == 0;
    if (first && kind == Keys::kExtreme) block_kind = Uniform(random, 0, 5);
    for (int64_t i = 0; i < cols; ++i) {
      const auto at = static_cast<size_t>(i);
      if (first) {
        drift[at] = static_cast<float>(Uniform(random, -64, 64)) / 64.0f;
        power[at] = block_kind == 4   ? std::exp2(static_cast<float>(Uniform(random, -14, 6)))
                    : block_kind == 5 ? 0x1p-18f
                                      : 1.0f;
      }
      const float noise = static_cast<float>(Uniform(random, -80, 80)) / 64.0f;
      float value = drift[at] + noise;
      if (block_kind == 1) value = drift[at];
      if (block_kind == 2) value = t % block_size % 2 == 0 ? drift[at] : -drift[at];
      if (block_kind == 3) value = 0.0f;
      keys.row(t)[i] = value * power[at];
    }
  }
  return keys;
}

struct ScreenShape {
  KvGeometry geometry;
  int32_t group;
};

Case MakeScreenCase(Random& random, const ScreenShape& shape, Keys kind,
                    const std::vector<std::pair<int32_t, int32_t>>& positions_and_rows) {
  Case made;
  made.geometry = shape.geometry;
  made.group = shape.group;
  const int64_t cols = int64_t{shape.geometry.num_kv_heads} * shape.geometry.head_dim;
  int64_t rows = 0;
  for (const auto& [position, num_rows] : positions_and_rows) {
    const float zs[] = {0.0f, 1.5f, 1.5f, 8.0f};  // with the last one norms are the limit
    ScreenSequence sequence = {
        .position = position,
        .num_rows = num_rows,
        .options = {.z = zs[Uniform(random, 0, 3)],
                    .pinned_blocks = static_cast<int32_t>(Uniform(random, 0, 1)),
                    .sink_blocks = static_cast<int32_t>(Uniform(random, 0, 2)) / 2,
                    .rescue_chunk = Uniform(random, 0, 1) == 0 ? 0 : 20,
                    .shared_reads = Uniform(random, 0, 3) == 0},
        .k = MakeKeys(random, kind, position + num_rows, cols, shape.geometry.block_size),
        .thresholds = std::vector<float>(static_cast<size_t>(made.num_heads()))};
    if (made.sequences.size() % 2 == 1) {
      for (int32_t h = 0; h < made.num_heads(); ++h) sequence.head_z.push_back(zs[(h + rows) % 4]);
    }
    made.sequences.push_back(std::move(sequence));
    rows += num_rows;
  }
  made.q = Normal(random, rows, int64_t{made.num_heads()} * shape.geometry.head_dim);
  return made;
}

// What holds of every case: both selections are the ones that the records ask for, and the 8-bit
// one takes all that float16 takes without rescue.
void ExpectSelections(Device& device, Random& random, Case made) {
  Case narrow = made;
  narrow.geometry.index_dtype = DType::kInt8;
  std::vector<Bounds> bounds16, bounds8;
  {
    ScreenedStep first(device, made);
    bounds16 = AllBounds(made, first);
    ScreenedStep second(device, narrow);
    bounds8 = AllBounds(narrow, second);
  }
  device.Clear();
  for (size_t at = 0; at < bounds16.size(); ++at) {
    for (size_t j = 0; j < bounds16[at].values.size(); ++j) {
      ASSERT_GE(bounds8[at].values[j] + bounds8[at].slack[j], bounds16[at].values[j])
          << "block " << j << " of row and head " << at;
    }
  }
  PlaceThresholds(random, made, bounds16, bounds8);
  for (size_t s = 0; s < made.sequences.size(); ++s) {
    narrow.sequences[s].thresholds = made.sequences[s].thresholds;
  }
  const Selection got16 = ScreenedStep(device, made).selection();
  const Selection got8 = ScreenedStep(device, narrow).selection();
  EXPECT_EQ(Difference(got16, Expected(made, bounds16)), "") << "float16 index";
  EXPECT_EQ(Difference(got8, Expected(narrow, bounds8)), "") << "8-bit index";
  device.Clear();

  for (Case* one : {&made, &narrow}) {
    for (ScreenSequence& sequence : one->sequences) sequence.options.rescue_chunk = 0;
  }
  EXPECT_TRUE(
      Contains(ScreenedStep(device, narrow).selection(), ScreenedStep(device, made).selection()));
  device.Clear();
}

class CudaScreen : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyMissing({.name = "cuda"});
    if (!why.empty()) GTEST_SKIP() << why;
    device_ = std::make_unique<Device>(BackendUnderTest{.name = "cuda"});
  }
  std::unique_ptr<Device> device_;
};

// Head dimension, KV heads; the group goes round with them.
class CudaScreenShapes : public CudaScreen,
                         public ::testing::WithParamInterface<std::tuple<int, int>> {
 protected:
  ScreenShape MakeShape(int32_t block_size) const {
    const auto [head_dim, kv_heads] = GetParam();
    const int32_t group = 1 + (kv_heads * 5 + head_dim / 16) % (head_dim == 256 ? 8 : 16);
    return {{.num_kv_heads = kv_heads, .head_dim = head_dim, .block_size = block_size}, group};
  }
};

TEST_P(CudaScreenShapes, BothIndexesSelectWhatTheirRecordsAskFor) {
  for (const Keys kind : {Keys::kOrdinary, Keys::kExtreme}) {
    Random random(static_cast<uint64_t>(kind) + 11);
    // Around the ends of blocks, of the 16 that a warp takes and of the 64 of a unit; none at all.
    const Case made = MakeScreenCase(random, MakeShape(16), kind,
                                     {{16 * 16 - 1, 1},
                                      {16 * 16 - 2, 1},
                                      {5, 1},
                                      {16 * 17 + 3, 2},
                                      {16 * 65 - 1, 1},
                                      {0, 1},
                                      {16 * 33, 40},
                                      {15, 1}});
    ExpectSelections(*device_, random, made);
  }
}

TEST_P(CudaScreenShapes, RecordsOfOutliersSelectWhatTheyAskFor) {
  for (const Keys kind : {Keys::kOrdinary, Keys::kExtreme}) {
    Random random(static_cast<uint64_t>(kind) + 23);
    Case made =
        MakeScreenCase(random, MakeShape(16), kind,
                       {{16 * 17 + 3, 2}, {5, 1}, {16 * 65 - 1, 1}, {16 * 33, 40}, {15, 1}});
    made.geometry.index = IndexKind::kOutlier;
    made.geometry.index_dtype = DType::kInt8;
    std::vector<Bounds> bounds;
    {
      ScreenedStep step(*device_, made);
      bounds = AllBounds(made, step);
    }
    PlaceThresholds(random, made, bounds, bounds);
    EXPECT_EQ(Difference(ScreenedStep(*device_, made).selection(), Expected(made, bounds)), "");
    device_->Clear();
  }
}

TEST_P(CudaScreenShapes, TheReferenceSelectsTheSame) {
  Random random(5);
  Case made = MakeScreenCase(random, MakeShape(32), Keys::kOrdinary,
                             {{32 * 20, 1}, {32 * 3 - 1, 1}, {31, 2}, {32 * 9 + 5, 1}});
  made.geometry.index_dtype = DType::kInt8;
  std::vector<Bounds> bounds;
  {
    ScreenedStep step(*device_, made);
    bounds = AllBounds(made, step);
  }
  PlaceThresholds(random, made, bounds, bounds);
  Device reference({.name = "reference"});
  EXPECT_EQ(Difference(ScreenedStep(*device_, made).selection(),
                       ScreenedStep(reference, made).selection()),
            "");
}

// 80 has no tensor-core kernel.
INSTANTIATE_TEST_SUITE_P(Kernels, CudaScreenShapes,
                         ::testing::Combine(::testing::Values(64, 80, 96, 128, 256),
                                            ::testing::Range(1, 9)),
                         [](const auto& test) {
                           return "d" + std::to_string(std::get<0>(test.param)) + "_kv" +
                                  std::to_string(std::get<1>(test.param));
                         });

// More rows than FindShare has threads (128), and shares that cross rows; and many blocks whose
// records come about in the step that selects.
TEST_F(CudaScreen, ManyRowsAndBlocksOfTheStepItself) {
  for (const int32_t head_dim : {64, 128, 256}) {
    Random random(static_cast<uint64_t>(head_dim));
    const ScreenShape shape = {{.num_kv_heads = 4, .head_dim = head_dim, .block_size = 16},
                               head_dim == 64 ? 3 : 2};
    const Case made =
        MakeScreenCase(random, shape, Keys::kOrdinary,
                       {{16 * 700 + 9, 70}, {3, 40}, {16 * 260, 33}, {16 * 90 - 1, 1}});
    ExpectSelections(*device_, random, made);
  }
}

}  // namespace
}  // namespace eta::testing
