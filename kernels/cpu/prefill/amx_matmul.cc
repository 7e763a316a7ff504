// AmxMatMul computes out [rows, N] = x [rows, K] * weight [N, K]^T (+ out, if accumulate) on AMX
// tiles, x as the sum of two bfloat16. Weights of float16 exactly, and of float32 nearly, are the
// sum of two; those in blocks are not multiplied here.
//
// Rows are split once, into tiles that all panels share. A task takes some panels of 32 channels
// and a group of rows that shares L2 with them. It makes a panel's tiles in its thread's scratch,
// then multiplies them with 32 rows at a time. An element is one sum over K in steps of 32, in
// ascending order (amx_tile-inl.h), for any number of rows.

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/prefill/amx.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/prefill/amx_matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd/amx_tile-inl.h"
#include "kernels/cpu/simd/panel_row-inl.h"
#include "kernels/cpu/simd/product_output-inl.h"

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr auto kPairRows = static_cast<int64_t>(kAmxPairRows);

// Bytes of a task's rows, which share L2 with a panel.
constexpr size_t kRowGroupBytes = size_t{7} << 17;

// The rows of x as tiles: pairs of 16 rows, rows after the last one zero.
struct RowTiles {
  const std::byte* tiles;
  size_t steps;
  int64_t num_rows;

  int64_t count() const { return (num_rows + kPairRows - 1) / kPairRows; }
  size_t pair_bytes() const { return steps * kAmxRowStepBytes; }
  const std::byte* pair(int64_t i) const { return tiles + static_cast<size_t>(i) * pair_bytes(); }
};

// Terms [k, k + 16) of a row; terms from K on are zero.
HWY_INLINE Floats LoadTerms(const float* row, size_t k, size_t depth) {
  const Float d;
  if (HWY_LIKELY(k + kLanes <= depth)) return hn::LoadU(d, row + k);
  HWY_ALIGN float edge[kLanes] = {};
  if (k < depth) std::memcpy(edge, row + k, (depth - k) * sizeof(float));
  return hn::Load(d, edge);
}

void PackRows(const TensorView& x, int64_t begin, int64_t count, size_t steps, std::byte* to) {
  const hn::RebindToUnsigned<Float> du;
  const auto depth = static_cast<size_t>(x.cols);
  for (size_t s = 0; s < steps; ++s, to += kAmxRowStepBytes) {
    for (int64_t r = 0; r < kPairRows; ++r) {
      Words high = hn::Zero(du);
      Words low = hn::Zero(du);
      if (r < count) {
        const float* row = x.row(begin + r);
        SplitTerms(LoadTerms(row, s * kAmxDepth, depth),
                   LoadTerms(row, s * kAmxDepth + kLanes, depth), high, low);
      }
      uint32_t* words = AmxRowWords(to, static_cast<size_t>(r));
      hn::Store(low, du, words);
      hn::Store(high, du, words + 2 * kAmxTileWords);
    }
  }
}

constexpr bool HasLow(Storage storage) {
  return storage == Storage::kFloat32 || storage == Storage::kFloat16;
}

// Makes a panel's tiles, a row of words at a time.
template <Storage kStorage>
class PanelTiles {
 public:
  static constexpr bool kHasLow = HasLow(kStorage);
  static constexpr size_t kStepBytes = AmxColumnStepBytes(kHasLow);

  void Begin(const std::byte* panel, size_t depth, std::byte* tiles) {
    panel_ = panel;
    depth_ = depth;
    tiles_ = tiles;
    next_ = 0;
    end_ = AmxSteps(depth) * kAmxRows;
  }

  // The next `count` rows, or those that are left.
  HWY_INLINE void Make(size_t count) {
    for (const size_t end = std::min(next_ + count, end_); next_ < end; ++next_) MakeRow(next_);
  }

 private:
  HWY_INLINE void MakeRow(size_t i) const {
    const hn::RebindToUnsigned<Float> du;
    constexpr size_t kRowBytes = kPanelWidth * StorageBytes(kStorage);
    const size_t step = i / kAmxRows;
    const size_t k = step * kAmxDepth + i % kAmxRows;
    Floats a = hn::Zero(Float());  // term k of channels 0 .. 15
    Floats b = a;                  // and of 16 .. 31
    Floats c = a;                  // term k + 16
    Floats d = a;
    if (HWY_LIKELY(k < depth_)) LoadColumns<kStorage>(panel_ + k * kRowBytes, 0, a, b);
    if (HWY_LIKELY(k + kAmxRows < depth_)) {
      LoadColumns<kStorage>(panel_ + (k + kAmxRows) * kRowBytes, 0, c, d);
    }
    auto* words = reinterpret_cast<uint32_t*>(tiles_ + step * kStepBytes) + i % kAmxRows * kLanes;
    if constexpr (kHasLow) {
      Words high;
      Words low;
      SplitTerms(a, c, high, low);
      hn::Store(high, du, words);
      hn::Store(low, du, words + 2 * kAmxTileWords);
      SplitTerms(b, d, high, low);
      hn::Store(high, du, words + kAmxTileWords);
      hn::Store(low, du, words + 3 * kAmxTileWords);
    } else {
      hn::Store(JoinTerms(a, c), du, words);
      hn::Store(JoinTerms(b, d), du, words + kAmxTileWords);
    }
  }

  const std::byte* panel_ = nullptr;
  std::byte* tiles_ = nullptr;
  size_t depth_ = 0;
  size_t next_ = 0;
  size_t end_ = 0;
};

// Sums [32][32] on their way to the output, some rows at a time.
class PendingSums {
 public:
  explicit PendingSums(const Output& output) : output_(output) {}

  void Begin(const float* sums, int64_t row, int64_t num_rows, int64_t channel) {
    sums_ = sums;
    row_ = row;
    end_ = row + num_rows;
    channel_ = channel;
  }

  HWY_INLINE void Store(int64_t count) {
    const Float d;
    for (const int64_t end = std::min(row_ + count, end_); row_ < end; ++row_) {
      StoreColumns(hn::Load(d, sums_), output_, row_, channel_);
      StoreColumns(hn::Load(d, sums_ + kLanes), output_, row_,
                   channel_ + static_cast<int64_t>(kLanes));
      sums_ += kAmxColumns;
    }
  }

 private:
  Output output_;
  const float* sums_ = nullptr;
  int64_t row_ = 0;
  int64_t end_ = 0;
  int64_t channel_ = 0;
};

// Panels and pairs of rows of a task.
struct Part {
  int64_t first_panel;
  int64_t last_panel;  // exclusive
  int64_t first_pair;
  int64_t last_pair;
};

// A step's share of what is done beside the product of 32 rows: the stores of the 32 rows before,
// and the tiles of the next panel.
template <Storage kStorage>
struct Beside {
  PendingSums& pending;
  int64_t output_rows;
  PanelTiles<kStorage>& maker;
  size_t tile_rows;

  HWY_INLINE void operator()() const {
    pending.Store(output_rows);
    maker.Make(tile_rows);
  }
};

template <Storage kStorage>
void MultiplyPart(const RowTiles& rows, const PanelMatrix& weight, const Output& output,
                  const Part& part) {
  constexpr bool kHasLow = HasLow(kStorage);
  constexpr size_t kSums = kAmxPairRows * kAmxColumns;
  thread_local Scratch scratch;
  const auto depth = static_cast<size_t>(weight.cols());
  const size_t panel_bytes = rows.steps * AmxColumnStepBytes(kHasLow);
  auto* memory = scratch.Reserve<std::byte>(2 * panel_bytes + 2 * kSums * sizeof(float));
  std::byte* tiles[2] = {memory, memory + panel_bytes};
  float* sums[2];
  sums[0] = reinterpret_cast<float*>(memory + 2 * panel_bytes);
  sums[1] = sums[0] + kSums;

  const AmxTiles in_use;
  const auto num_pairs = static_cast<size_t>(part.last_pair - part.first_pair);
  const size_t tile_rows = (kAmxRows + num_pairs - 1) / num_pairs;  // beside a step
  const auto output_rows = static_cast<int64_t>((kAmxPairRows + rows.steps - 1) / rows.steps);
  PanelTiles<kStorage> maker;
  PendingSums pending(output);
  const Beside<kStorage> beside{pending, output_rows, maker, tile_rows};
  maker.Begin(weight.panel(part.first_panel), depth, tiles[0]);
  maker.Make(rows.steps * kAmxRows);
  size_t turn = 0;
  for (int64_t panel = part.first_panel; panel < part.last_panel; ++panel) {
    const std::byte* columns = tiles[0];
    std::swap(tiles[0], tiles[1]);
    if (panel + 1 < part.last_panel) maker.Begin(weight.panel(panel + 1), depth, tiles[0]);
    for (int64_t pair = part.first_pair; pair < part.last_pair; ++pair, turn ^= 1) {
      const int64_t row = pair * kPairRows;
      const int64_t num_rows = std::min(kPairRows, rows.num_rows - row);
      AmxZeroSums();
      if (num_rows > static_cast<int64_t>(kAmxRows)) {
        AmxMultiplyPair<kHasLow>(rows.pair(pair), columns, rows.steps, beside);
      } else {
        AmxMultiplySingle<kHasLow>(rows.pair(pair), columns, rows.steps, beside);
      }
      AmxStoreSums(sums[turn], kAmxColumns * sizeof(float));
      pending.Begin(sums[turn], row, num_rows, panel * kPanelCols);
    }
  }
  pending.Store(kPairRows);
}

void MultiplyPart(const RowTiles& rows, const PanelMatrix& weight, const Output& output,
                  const Part& part) {
  switch (weight.storage()) {
    case Storage::kFloat32:
      return MultiplyPart<Storage::kFloat32>(rows, weight, output, part);
    case Storage::kFloat16:
      return MultiplyPart<Storage::kFloat16>(rows, weight, output, part);
    case Storage::kBFloat16:
      return MultiplyPart<Storage::kBFloat16>(rows, weight, output, part);
  }
}

// Pairs of a task: at most what L2 takes, in equal groups, and enough groups for the threads.
int64_t PairsPerGroup(const RowTiles& rows, int64_t num_panels, int num_threads) {
  const auto most = static_cast<int64_t>(std::max<size_t>(1, kRowGroupBytes / rows.pair_bytes()));
  int64_t groups = (rows.count() + most - 1) / most;
  while (groups * num_panels < 4 * num_threads && 4 * groups < rows.count()) groups *= 2;
  return (rows.count() + groups - 1) / groups;
}

void AmxMatMulOnTarget(const Context& context, const MatMulParams& params) {
  const auto& weight = static_cast<const PanelMatrix&>(*params.weight);
  if (params.out.rows == 0 || weight.rows() == 0) return;
  thread_local Scratch scratch;
  RowTiles rows{nullptr, AmxSteps(static_cast<size_t>(weight.cols())), params.out.rows};
  auto* tiles = scratch.Reserve<std::byte>(static_cast<size_t>(rows.count()) * rows.pair_bytes());
  rows.tiles = tiles;
  context.workers.Run(rows.count(), [&](int64_t pair, int) {
    const int64_t begin = pair * kPairRows;
    PackRows(params.x, begin, std::min(kPairRows, rows.num_rows - begin), rows.steps,
             tiles + static_cast<size_t>(pair) * rows.pair_bytes());
  });
  const Output output{params.out, params.accumulate};
  const int64_t num_panels = weight.num_panels();
  const int num_threads = context.workers.num_threads();
  const int64_t pairs = PairsPerGroup(rows, num_panels, num_threads);
  const int64_t num_groups = (rows.count() + pairs - 1) / pairs;
  // Many panels hide the making of all but the first; some tasks per thread even out their speeds.
  const int64_t panels = std::clamp<int64_t>(num_groups * num_panels / (6 * num_threads), 1, 8);
  const int64_t num_parts = (num_panels + panels - 1) / panels;
  context.workers.Run(num_groups * num_parts, [&](int64_t task, int) {
    const int64_t panel = task % num_parts * panels;
    const int64_t pair = task / num_parts * pairs;
    MultiplyPart(
        rows, weight, output,
        {panel, std::min(panel + panels, num_panels), pair, std::min(pair + pairs, rows.count())});
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE

void AmxMatMul(const Context& context, const MatMulParams& params) {
  HWY_NAMESPACE::AmxMatMulOnTarget(context, params);
}

}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // AVX-512
