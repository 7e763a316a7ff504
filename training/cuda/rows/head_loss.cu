// Losses of the head and their gradients, over chunks of rows: the logits of a chunk are one
// product, one kernel makes losses and gradients of them, and two products carry the gradients on.
// Memory and the products bind.

#include <algorithm>
#include <span>

#include "training/cuda/rows/elements.cuh"
#include "training/cuda/rows/ops.h"

namespace eta::training::cuda {
namespace {

// Logits of a chunk, in elements. A larger chunk reads and writes the head's gradient less often.
constexpr int64_t kChunkLogits = int64_t{1} << 26;
constexpr int kLossThreads = 512;

struct LossArgs {
  const float* logits;          // [rows, V]
  const float* teacher_logits;  // [rows, V]; null: no teacher
  int64_t vocab;
  int64_t stride;  // of the rows of logits and gradients, at least V
  const int32_t* targets;
  const float* ce_weights;
  const float* kl_weights;
  float* cross_entropy;
  float* divergence;
  float* hit;           // may be null
  __nv_bfloat16* grad;  // [rows, V]; null: losses alone
};

// Maximum and sum of exp(x - maximum).
struct LogSum {
  float maximum = -INFINITY;
  float sum = 0.0f;
};

__device__ __forceinline__ LogSum Join(const LogSum& a, const LogSum& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  if (maximum == -INFINITY) return {};
  return {maximum, a.sum * __expf(a.maximum - maximum) + b.sum * __expf(b.maximum - maximum)};
}

__device__ __forceinline__ void Add(LogSum& to, const float (&values)[4]) {
  const float largest = fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3]));
  if (largest > to.maximum) {
    to.sum *= __expf(to.maximum - largest);
    to.maximum = largest;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to.sum += __expf(values[i] - to.maximum);
}

// Four logits from `col` on; -infinity after the last one.
template <bool kFours>
__device__ __forceinline__ void LoadLogits(const float* row, int64_t col, int64_t vocab,
                                           float (&to)[4]) {
  if constexpr (kFours) {
    eta::cuda::LoadElements<float, 4>(row + col, to);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = col + i < vocab ? row[col + i] : -INFINITY;
  }
}

__device__ __forceinline__ float Log(const LogSum& sum) {
  return sum.maximum + logf(sum.sum);
}

template <bool kFours>
__device__ __forceinline__ LogSum LogSumOfRow(const float* row, int64_t vocab, LogSum* shared) {
  LogSum sum;
  for (int64_t col = threadIdx.x * 4; col < vocab; col += kLossThreads * 4) {
    float values[4];
    LoadLogits<kFours>(row, col, vocab, values);
    Add(sum, values);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const LogSum other = {__shfl_xor_sync(~0u, sum.maximum, step),
                          __shfl_xor_sync(~0u, sum.sum, step)};
    sum = Join(sum, other);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = shared[0];
  for (int i = 1; i < kLossThreads / 32; ++i) sum = Join(sum, shared[i]);
  return sum;
}

// A block takes a row.
template <bool kFours>
__global__ void __launch_bounds__(kLossThreads) LossOfRows(const __grid_constant__ LossArgs args) {
  __shared__ LogSum shared[kLossThreads / 32];
  __shared__ float sums[kLossThreads / 32];
  Begin();
  const int64_t row = blockIdx.x;
  const float* logits = args.logits + row * args.stride;
  const float* teacher =
      args.teacher_logits == nullptr ? nullptr : args.teacher_logits + row * args.stride;
  const LogSum sum = LogSumOfRow<kFours>(logits, args.vocab, shared);
  const float lse = Log(sum);
  const float teacher_lse =
      teacher == nullptr ? 0.0f : Log(LogSumOfRow<kFours>(teacher, args.vocab, shared));
  const int32_t target = args.targets[row];
  const float ce_weight = target < 0 ? 0.0f : args.ce_weights[row];
  const float kl_weight = teacher == nullptr ? 0.0f : args.kl_weights[row];
  if (threadIdx.x == 0) {
    args.cross_entropy[row] = target < 0 ? 0.0f : lse - logits[target];
  }
  if (args.hit != nullptr) {
    // The row's largest logit, and no earlier one is its equal.
    int before = 0;
    const bool largest = target >= 0 && logits[target] == sum.maximum;
    if (largest) {
      for (int32_t col = threadIdx.x; col < target; col += kLossThreads) {
        before |= logits[col] == sum.maximum;
      }
      before = __syncthreads_or(before);
    }
    if (threadIdx.x == 0) args.hit[row] = largest && before == 0 ? 1.0f : 0.0f;
  }
  if (args.grad == nullptr && teacher == nullptr) return;
  float divergence = 0.0f;
  for (int64_t col = threadIdx.x * 4; col < args.vocab; col += kLossThreads * 4) {
    float values[4];
    float others[4] = {};
    LoadLogits<kFours>(logits, col, args.vocab, values);
    if (teacher != nullptr) LoadLogits<kFours>(teacher, col, args.vocab, others);
    float grad[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!kFours && col + i >= args.vocab) continue;
      const float log_p = values[i] - lse;
      const float p = __expf(log_p);
      grad[i] = ce_weight * (p - (col + i == target ? 1.0f : 0.0f));
      if (teacher != nullptr) {
        const float log_teacher = others[i] - teacher_lse;
        const float teacher_p = __expf(log_teacher);
        divergence = fmaf(teacher_p, log_teacher - log_p, divergence);
        grad[i] = fmaf(kl_weight, p - teacher_p, grad[i]);
      }
      if (!kFours && args.grad != nullptr) {
        args.grad[row * args.stride + col + i] = __float2bfloat16_rn(grad[i]);
      }
    }
    if (kFours && args.grad != nullptr) {
      eta::cuda::StoreElements<__nv_bfloat16, 4>(grad, args.grad + row * args.stride + col);
    }
  }
  if (teacher == nullptr) return;
  divergence = SumOfWarp(divergence);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = divergence;
  __syncthreads();
  if (threadIdx.x != 0) return;
  divergence = 0.0f;
  for (const float sum : sums) divergence += sum;
  args.divergence[row] = divergence;
}

}  // namespace

void HeadLoss(Context& context, Products& products, Staging& staging,
              const HeadLossParams& params) {
  const int64_t rows = params.hidden.rows;
  const int64_t vocab = params.head.rows;
  if (rows == 0) return;
  const bool teaches = !params.teacher_hidden.empty();
  const bool grads = !params.grad_hidden.empty();
  const std::span<const std::byte> pieces[] = {std::as_bytes(params.targets),
                                               std::as_bytes(params.ce_weights),
                                               std::as_bytes(params.kl_weights)};
  const std::byte* uploaded = staging.Upload(pieces);
  if (uploaded == nullptr) return;
  const auto* targets = reinterpret_cast<const int32_t*>(uploaded);
  const auto* ce_weights = reinterpret_cast<const float*>(uploaded + Staging::Offset(pieces, 1));
  const auto* kl_weights = reinterpret_cast<const float*>(uploaded + Staging::Offset(pieces, 2));

  const int64_t stride = (vocab + 7) / 8 * 8;  // rows on 16 bytes
  const int64_t chunk = std::clamp<int64_t>(kChunkLogits / stride, 1, rows);
  const auto elements = static_cast<size_t>(chunk * stride);
  const size_t logits_bytes = elements * sizeof(float);
  auto* memory = static_cast<std::byte*>(context.workspace.Get(
      Workspace::Use::kLogits, (teaches ? 2 : 1) * logits_bytes + elements * 2));
  if (memory == nullptr) return;
  std::byte* teacher_memory = memory + logits_bytes;
  std::byte* grad_memory = memory + (teaches ? 2 : 1) * logits_bytes;
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    const auto matrix = [&](std::byte* data, DType dtype) {
      return Tensor{.data = data, .dtype = dtype, .rows = count, .cols = vocab, .stride = stride};
    };
    const Tensor logits = matrix(memory, DType::kFloat32);
    const Tensor grad = matrix(grad_memory, DType::kBFloat16);
    const Tensor hidden = params.hidden.Rows(first, count);
    products.Multiply({hidden}, {params.head, true}, logits, false);
    LossArgs args = {.logits = logits.as<float>(),
                     .teacher_logits = nullptr,
                     .vocab = vocab,
                     .stride = stride,
                     .targets = targets + first,
                     .ce_weights = ce_weights + first,
                     .kl_weights = kl_weights + first,
                     .cross_entropy = params.cross_entropy + first,
                     .divergence = teaches ? params.divergence + first : nullptr,
                     .hit = params.hit == nullptr ? nullptr : params.hit + first,
                     .grad = grads ? grad.as<__nv_bfloat16>() : nullptr};
    if (teaches) {
      const Tensor teacher = matrix(teacher_memory, DType::kFloat32);
      products.Multiply({params.teacher_hidden.Rows(first, count)}, {params.teacher_head, true},
                        teacher, false);
      args.teacher_logits = teacher.as<float>();
    }
    eta::cuda::Launch(context.device, "HeadLoss",
                      {.grid = static_cast<unsigned>(count), .block = kLossThreads},
                      vocab % 4 == 0 ? LossOfRows<true> : LossOfRows<false>, args);
    if (!grads) continue;
    products.Multiply({grad}, {params.head}, params.grad_hidden.Rows(first, count), false);
    if (params.grad_head != nullptr) {
      const Tensor grad_head = {.data = params.grad_head,
                                .dtype = DType::kFloat32,
                                .rows = vocab,
                                .cols = params.hidden.cols,
                                .stride = params.hidden.cols};
      products.Multiply({grad, true}, {hidden}, grad_head, true);
    }
  }
}

}  // namespace eta::training::cuda
