// Attention to compressed keys: products over all windows of a part of the rows, with kernels of
// rows between them. A row's windows are few, so half of the products are of windows that it does
// not see. Memory binds.

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/cuda/native_sparse/compressed_rows.cuh"
#include "training/cuda/native_sparse/native_sparse.h"

namespace eta::training::cuda {
namespace {

// Of scores and their gradients.
constexpr int64_t kScoreBytes = int64_t{512} << 20;
constexpr int32_t kLongest = 32768;
constexpr int32_t kMostPieces = 16;
static_assert(CompressedCount(kLongest) <= kMostPieces * kPieceWindows);

// How the rows are cut: some sequences whole, or one of them in parts of whole blocks of tokens.
struct Cut {
  int32_t windows;    // C
  int32_t padded;     // C in whole eights
  int32_t sequences;  // of a part, at most
  int32_t tokens;     // of a sequence in a part, at most

  int64_t scores(const AttentionShape& shape) const {
    return int64_t{shape.group()} * sequences * tokens * padded;
  }
  // Of the keys or the values of one KV head.
  int64_t keys(const AttentionShape& shape) const {
    return int64_t{sequences} * padded * shape.head_dim;
  }
};

Cut CutOf(const AttentionShape& shape, int64_t bytes_of_score) {
  const int32_t windows = CompressedCount(shape.length);
  Cut cut = {.windows = windows,
             .padded = (windows + 7) / 8 * 8,
             .sequences = shape.sequences,
             .tokens = shape.length};
  const int64_t most =
      kScoreBytes / (bytes_of_score * shape.group() * std::max(cut.padded, 1));  // tokens
  if (most >= shape.length) {
    cut.sequences = static_cast<int32_t>(std::min<int64_t>(most / shape.length, shape.sequences));
  } else {
    cut.sequences = 1;
    cut.tokens =
        static_cast<int32_t>(std::max<int64_t>(most / kRegulariserBlock, 1) * kRegulariserBlock);
  }
  return cut;
}

// A part of the rows of the heads of one KV head.
struct Part {
  int32_t kv_head;
  int32_t first_sequence;
  int32_t sequences;
  int32_t first_token;
  int32_t tokens;
};

// Calls begin(part) for some sequences of a KV head, visit(part) for each part of their tokens, and
// end(part).
template <typename Begin, typename Visit, typename End>
void ForParts(const AttentionShape& shape, const Cut& cut, Begin&& begin, Visit&& visit,
              End&& end) {
  for (int32_t first = 0; first < shape.sequences; first += cut.sequences) {
    for (int32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      Part part = {.kv_head = kv_head,
                   .first_sequence = first,
                   .sequences = std::min(cut.sequences, shape.sequences - first),
                   .first_token = 0,
                   .tokens = shape.length};
      begin(part);
      for (; part.first_token < shape.length; part.first_token += cut.tokens) {
        part.tokens = std::min(cut.tokens, shape.length - part.first_token);
        visit(part);
      }
      end(part);
    }
  }
}

// Keys or values of some sequences of one KV head, with rows of 0 after them.
template <int kWidth>
struct PadWindows {
  Rows<const __nv_bfloat16> from;  // [sequences C, d]
  Rows<__nv_bfloat16> to;          // [sequences padded, d]
  int32_t windows;
  int32_t padded;
  __device__ void operator()(int64_t row, int64_t col) const {
    const auto window = static_cast<int32_t>(row % padded);
    float values[kWidth] = {};
    if (window < windows) from.Load(row / padded * windows + window, col, values);
    to.Store(values, row, col);
  }
};

template <int kWidth>
struct RoundWindows {
  Rows<const float> from;  // [sequences padded, d]
  Rows<__nv_bfloat16> to;  // [sequences C, d]
  int32_t windows;
  int32_t padded;
  __device__ void operator()(int64_t row, int64_t col) const {
    float values[kWidth];
    from.Load(row / windows * padded + row % windows, col, values);
    to.Store(values, row, col);
  }
};

// One op: its shape, how it is cut, and matrices of parts. Scores and their gradients are float32
// and become bfloat16 in the first half of their rows.
class Windows {
 public:
  Windows(Context& context, const AttentionShape& shape, int64_t bytes_of_score)
      : context_(context), shape_(shape), cut_(CutOf(shape, bytes_of_score)) {}

  const Cut& cut() const { return cut_; }

  // [tokens, d] of a query head, of the part's first sequence.
  Tensor Queries(const Tensor& x, const Part& part, int32_t head) const {
    const int64_t first = int64_t{part.first_sequence} * shape_.length + part.first_token;
    const int64_t column = int64_t{part.kv_head * shape_.group() + head} * shape_.head_dim;
    return x.Columns(column, shape_.head_dim).Rows(first, part.tokens);
  }
  int64_t QueryStep(const Tensor& x) const { return x.stride * shape_.length; }

  Tensor Scores(float* scores, const Part& part, int32_t head) const {
    return {.data = scores + head * part.sequences * ScoreStep(part),
            .dtype = DType::kFloat32,
            .rows = part.tokens,
            .cols = cut_.padded,
            .stride = cut_.padded};
  }
  int64_t ScoreStep(const Part& part) const { return int64_t{part.tokens} * cut_.padded; }
  Tensor Weights(float* scores, const Part& part, int32_t head) const {
    Tensor weights = Scores(scores, part, head);
    weights.dtype = DType::kBFloat16;
    weights.stride *= 2;
    return weights;
  }
  int64_t WeightStep(const Part& part) const { return 2 * ScoreStep(part); }

  // [padded, d] of the part's first sequence.
  Tensor Keys(void* data, DType dtype) const {
    return {.data = data,
            .dtype = dtype,
            .rows = cut_.padded,
            .cols = shape_.head_dim,
            .stride = shape_.head_dim};
  }
  int64_t KeyStep() const { return int64_t{cut_.padded} * shape_.head_dim; }

  void Pad(const Tensor& from, const Part& part, const Tensor& to) const {
    const Tensor rows = KeyRows(from, part);
    WithWidth(InFours(rows) && InFours(to), [&](auto width) {
      LaunchElements<width()>(
          context_, "windows", int64_t{part.sequences} * cut_.padded, to.cols,
          PadWindows<width()>{RowsOf<const __nv_bfloat16>(rows), RowsOf<__nv_bfloat16>(to),
                              cut_.windows, cut_.padded});
    });
  }
  void Round(const Tensor& from, const Part& part, const Tensor& to) const {
    const Tensor rows = KeyRows(to, part);
    WithWidth(InFours(rows) && InFours(from), [&](auto width) {
      LaunchElements<width()>(
          context_, "gradient of windows", int64_t{part.sequences} * cut_.windows, rows.cols,
          RoundWindows<width()>{RowsOf<const float>(from), RowsOf<__nv_bfloat16>(rows),
                                cut_.windows, cut_.padded});
    });
  }

  CompressedRows RowsOfPart(const Part& part, float* lse) const {
    const int64_t head =
        int64_t{part.first_sequence} * shape_.num_query_heads + part.kv_head * shape_.group();
    return {.group = shape_.group(),
            .sequences = part.sequences,
            .tokens = part.tokens,
            .first_token = part.first_token,
            .padded = cut_.padded,
            .scale = shape_.scale,
            .lse = lse + head * shape_.length + part.first_token,
            .length = shape_.length,
            .lse_sequence = int64_t{shape_.num_query_heads} * shape_.length};
  }

 private:
  // [sequences C, d] of the part's KV head.
  Tensor KeyRows(const Tensor& x, const Part& part) const {
    return x.Columns(int64_t{part.kv_head} * shape_.head_dim, shape_.head_dim)
        .Rows(int64_t{part.first_sequence} * cut_.windows, int64_t{part.sequences} * cut_.windows);
  }

  Context& context_;
  const AttentionShape& shape_;
  Cut cut_;
};

// Calls visit with the pieces of a row that a kernel holds, a constant.
template <typename Visit>
void WithPieces(int32_t padded, Visit&& visit) {
  if (padded <= 2 * kPieceWindows) {
    visit(std::integral_constant<int, 2>{});
  } else if (padded <= 4 * kPieceWindows) {
    visit(std::integral_constant<int, 4>{});
  } else if (padded <= 8 * kPieceWindows) {
    visit(std::integral_constant<int, 8>{});
  } else {
    visit(std::integral_constant<int, kMostPieces>{});
  }
}

// False, with the reason in `context`, for what the kernels do not do.
bool Check(Context& context, const AttentionShape& shape) {
  if (shape.length <= kLongest) return true;
  context.refused.Update(absl::InvalidArgumentError(
      absl::StrCat("backend: cuda: compressed attention takes sequences of up to ", kLongest,
                   " tokens; these have ", shape.length)));
  return false;
}

void Clear(Context& context, const Tensor& x) {
  const auto size = static_cast<int64_t>(SizeOf(x.dtype));
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements * size); };
  context.device.Check(cudaMemset2DAsync(x.data, bytes(x.stride), 0, bytes(x.cols),
                                         static_cast<size_t>(x.rows), context.device.stream()),
                       "zeros");
}

// Never null for want of something to hold.
template <typename T>
T* Scratch(Context& context, Workspace::Use use, int64_t count) {
  const auto bytes = static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T);
  return static_cast<T*>(context.workspace.Get(use, bytes));
}

}  // namespace

void CompressedAttention(Context& context, Products& products,
                         const CompressedAttentionParams& params) {
  const AttentionShape& shape = params.shape;
  if (shape.rows() == 0 || !Check(context, shape)) return;
  const Windows windows(context, shape, sizeof(float));
  const Cut& cut = windows.cut();
  const bool any = cut.windows > 0;
  if (!any) Clear(context, params.out);
  auto* scores = Scratch<float>(context, Workspace::Use::kScores, cut.scores(shape));
  auto* keys = Scratch<__nv_bfloat16>(context, Workspace::Use::kWindows, 2 * cut.keys(shape));
  if (scores == nullptr || keys == nullptr) return;
  const Tensor k = windows.Keys(keys, DType::kBFloat16);
  const Tensor v = windows.Keys(keys + cut.keys(shape), DType::kBFloat16);
  const int32_t blocks = KeySelection::Blocks(shape.length);
  const int64_t head_words = int64_t{blocks} * blocks;
  const auto begin = [&](const Part& part) {
    if (!any) return;
    windows.Pad(params.k, part, k);
    windows.Pad(params.v, part, v);
  };
  const auto visit = [&](const Part& part) {
    for (int32_t head = 0; any && head < shape.group(); ++head) {
      products.Multiply({windows.Queries(params.q, part, head)}, {k, true},
                        windows.Scores(scores, part, head), false,
                        {.count = part.sequences,
                         .a_step = windows.QueryStep(params.q),
                         .b_step = windows.KeyStep(),
                         .out_step = windows.ScoreStep(part)});
    }
    const WeighArgs args = {
        .rows = windows.RowsOfPart(part, params.lse),
        .scores = scores,
        .selected = params.selected +
                    (int64_t{part.first_sequence} * shape.num_kv_heads + part.kv_head) * head_words,
        .selected_step = shape.num_kv_heads * head_words,
        .blocks = blocks};
    const eta::cuda::LaunchShape launch = {
        .grid = {BlocksOf(part.tokens, kRegulariserBlock), static_cast<unsigned>(part.sequences)},
        .block = kThreads,
        .shared_bytes = static_cast<size_t>(blocks) * sizeof(uint64_t)};
    WithPieces(cut.padded, [&](auto pieces) {
      eta::cuda::Launch(context.device, "compressed attention", launch, WeighWindows<pieces()>,
                        args);
    });
    for (int32_t head = 0; any && head < shape.group(); ++head) {
      products.Multiply({windows.Weights(scores, part, head)}, {v},
                        windows.Queries(params.out, part, head), false,
                        {.count = part.sequences,
                         .a_step = windows.WeightStep(part),
                         .b_step = windows.KeyStep(),
                         .out_step = windows.QueryStep(params.out)});
    }
  };
  ForParts(shape, cut, begin, visit, [](const Part&) {});
}

void CompressedAttentionBackward(Context& context, Products& products,
                                 const CompressedAttentionBackwardParams& params) {
  const CompressedAttentionParams& forward = params.forward;
  const AttentionShape& shape = forward.shape;
  if (shape.rows() == 0 || !Check(context, shape)) return;
  const Windows windows(context, shape, 2 * sizeof(float));
  const Cut& cut = windows.cut();
  if (cut.windows == 0) return Clear(context, params.grad_q);
  auto* scores = Scratch<float>(context, Workspace::Use::kScores, 2 * cut.scores(shape));
  // Gradients in float32, then keys and values in bfloat16.
  auto* sums = Scratch<float>(context, Workspace::Use::kWindows, 3 * cut.keys(shape));
  if (scores == nullptr || sums == nullptr) return;
  float* grads = scores + cut.scores(shape);
  auto* keys = reinterpret_cast<__nv_bfloat16*>(sums + 2 * cut.keys(shape));
  const Tensor k = windows.Keys(keys, DType::kBFloat16);
  const Tensor v = windows.Keys(keys + cut.keys(shape), DType::kBFloat16);
  const Tensor grad_k = windows.Keys(sums, DType::kFloat32);
  const Tensor grad_v = windows.Keys(sums + cut.keys(shape), DType::kFloat32);
  const auto begin = [&](const Part& part) {
    windows.Pad(forward.k, part, k);
    windows.Pad(forward.v, part, v);
  };
  const auto visit = [&](const Part& part) {
    // Scores, or gradients of weights: rows of queries by keys.
    const auto compare = [&](const Tensor& x, const Tensor& by, float* to, int32_t head) {
      products.Multiply({windows.Queries(x, part, head)}, {by, true},
                        windows.Scores(to, part, head), false,
                        {.count = part.sequences,
                         .a_step = windows.QueryStep(x),
                         .b_step = windows.KeyStep(),
                         .out_step = windows.ScoreStep(part)});
    };
    // The sum over the group's rows of weights by x.
    const auto add = [&](float* weights, const Tensor& x, const Tensor& to, int32_t head) {
      products.Multiply({windows.Weights(weights, part, head), true},
                        {windows.Queries(x, part, head)}, to, part.first_token > 0 || head > 0,
                        {.count = part.sequences,
                         .a_step = windows.WeightStep(part),
                         .b_step = windows.QueryStep(x),
                         .out_step = windows.KeyStep()});
    };
    for (int32_t head = 0; head < shape.group(); ++head) {
      compare(forward.q, k, scores, head);
      compare(params.grad_out, v, grads, head);
    }
    const DifferentiateArgs args = {
        .rows = windows.RowsOfPart(part, forward.lse), .scores = scores, .grads = grads};
    const int64_t rows = int64_t{shape.group()} * part.sequences * part.tokens;
    WithPieces(cut.padded, [&](auto pieces) {
      eta::cuda::Launch(context.device, "gradient of compressed attention",
                        {.grid = BlocksOf(rows, kWarps), .block = kThreads},
                        DifferentiateWindows<pieces()>, args);
    });
    for (int32_t head = 0; head < shape.group(); ++head) {
      add(scores, params.grad_out, grad_v, head);
      add(grads, forward.q, grad_k, head);
      products.Multiply({windows.Weights(grads, part, head)}, {k},
                        windows.Queries(params.grad_q, part, head), false,
                        {.count = part.sequences,
                         .a_step = windows.WeightStep(part),
                         .b_step = windows.KeyStep(),
                         .out_step = windows.QueryStep(params.grad_q)});
    }
  };
  const auto end = [&](const Part& part) {
    windows.Round(grad_k, part, params.grad_k);
    windows.Round(grad_v, part, params.grad_v);
  };
  ForParts(shape, cut, begin, visit, end);
}

}  // namespace eta::training::cuda
