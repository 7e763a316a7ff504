// AmxMatMul computes out [rows, N] = x [rows, K] * weight [N, K]^T (+ out, if accumulate) on AMX
// tiles, x as the sum of two bfloat16. Weights of bfloat16 and of 8 bits are bfloat16 exactly; those
// of float16 exactly, and of float32 nearly, the sum of two.
//
// Rows are split once, into tiles that all panels share. A task takes one panel of 32 channels and
// a group of rows that shares L2 with it. It makes the panel's tiles in its thread's scratch, then
// multiplies them with 32 rows at a time. An element is one sum over K in steps of 32, in ascending
// order (amx_tile-inl.h), for any number of rows.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/prefill/amx.h"
#include "kernels/cpu/scratch.h"

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
constexpr size_t kRowGroupBytes = size_t{13} << 17;

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

template <Storage kStorage>
void MakePanelTiles(const std::byte* panel, size_t depth, std::byte* to) {
  const hn::RebindToUnsigned<Float> du;
  constexpr size_t kRowBytes = kPanelWidth * StorageBytes(kStorage);
  for (size_t s = 0; s < AmxSteps(depth); ++s) {
    auto* words = reinterpret_cast<uint32_t*>(to + s * AmxColumnStepBytes(HasLow(kStorage)));
    for (size_t j = 0; j < kAmxRows; ++j, words += kLanes) {
      Floats first[2] = {hn::Zero(Float()), hn::Zero(Float())};  // channels 0 .. 15, 16 .. 31
      Floats second[2] = {hn::Zero(Float()), hn::Zero(Float())};
      const size_t k = s * kAmxDepth + j;
      if (k < depth) LoadColumns<kStorage>(panel + k * kRowBytes, 0, first[0], first[1]);
      if (k + kAmxRows < depth) {
        LoadColumns<kStorage>(panel + (k + kAmxRows) * kRowBytes, 0, second[0], second[1]);
      }
      for (size_t half = 0; half < 2; ++half) {
        if constexpr (HasLow(kStorage)) {
          Words high;
          Words low;
          SplitTerms(first[half], second[half], high, low);
          hn::Store(high, du, words + half * kAmxTileWords);
          hn::Store(low, du, words + (2 + half) * kAmxTileWords);
        } else {
          hn::Store(JoinTerms(first[half], second[half]), du, words + half * kAmxTileWords);
        }
      }
    }
  }
}

const std::byte* PanelTiles(const PackedMatrix& weight, int64_t panel) {
  thread_local Scratch scratch;
  const auto depth = static_cast<size_t>(weight.cols());
  auto* tiles = scratch.Reserve<std::byte>(AmxSteps(depth) *
                                           AmxColumnStepBytes(HasLow(weight.storage())));
  const std::byte* from = weight.panel(panel);
  switch (weight.storage()) {
    case Storage::kFloat32:
      MakePanelTiles<Storage::kFloat32>(from, depth, tiles);
      break;
    case Storage::kFloat16:
      MakePanelTiles<Storage::kFloat16>(from, depth, tiles);
      break;
    case Storage::kBFloat16:
      MakePanelTiles<Storage::kBFloat16>(from, depth, tiles);
      break;
    case Storage::kInt8:
      MakePanelTiles<Storage::kInt8>(from, depth, tiles);
      break;
  }
  return tiles;
}

void StoreSums(const float* sums, const Output& output, int64_t row, int64_t num_rows,
               int64_t channel) {
  const Float d;
  for (int64_t r = 0; r < num_rows; ++r, sums += kAmxColumns) {
    StoreColumns(hn::Load(d, sums), output, row + r, channel);
    StoreColumns(hn::Load(d, sums + kLanes), output, row + r,
                 channel + static_cast<int64_t>(kLanes));
  }
}

template <bool kHasLow>
void MultiplyPanel(const RowTiles& rows, int64_t begin, int64_t end, const std::byte* columns,
                   const Output& output, int64_t channel) {
  HWY_ALIGN float sums[kAmxPairRows * kAmxColumns];
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t row = pair * kPairRows;
    const int64_t num_rows = std::min(kPairRows, rows.num_rows - row);
    AmxZeroSums();
    if (num_rows > static_cast<int64_t>(kAmxRows)) {
      AmxMultiplyPair<kHasLow>(rows.pair(pair), columns, rows.steps);
    } else {
      AmxMultiplySingle<kHasLow>(rows.pair(pair), columns, rows.steps);
    }
    AmxStoreSums(sums, kAmxColumns * sizeof(float));
    StoreSums(sums, output, row, num_rows, channel);
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
  const auto& weight = static_cast<const PackedMatrix&>(*params.weight);
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
  const Output output{params.out, weight.scales(), params.accumulate};
  const int64_t num_panels = weight.num_panels();
  const int64_t per_group = PairsPerGroup(rows, num_panels, context.workers.num_threads());
  const int64_t num_groups = (rows.count() + per_group - 1) / per_group;
  context.workers.Run(num_groups * num_panels, [&](int64_t task, int) {
    const AmxTiles in_use;
    const int64_t panel = task % num_panels;
    const int64_t begin = task / num_panels * per_group;
    const int64_t end = std::min(begin + per_group, rows.count());
    const std::byte* columns = PanelTiles(weight, panel);
    if (HasLow(weight.storage())) {
      MultiplyPanel<true>(rows, begin, end, columns, output, panel * kPanelCols);
    } else {
      MultiplyPanel<false>(rows, begin, end, columns, output, panel * kPanelCols);
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // AVX-512

#if HWY_ONCE
namespace eta::cpu {

void AmxMatMul(const Context& context, const MatMulParams& params) {
#if HWY_ARCH_X86_64 && (HWY_TARGETS & HWY_AVX3)
  N_AVX3::AmxMatMulOnTarget(context, params);
#else
  static_cast<void>(context);
  static_cast<void>(params);
  std::abort();
#endif
}

}  // namespace eta::cpu
#endif  // HWY_ONCE
