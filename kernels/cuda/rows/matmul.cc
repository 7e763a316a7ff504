// MatMul computes out [rows, N] = x [rows, K] * weight [N, K]^T (+ out, if accumulate), by
// cuBLASLt. Start, end and latency of the library's kernels bind; this file chooses among them by
// measurement.

#include "kernels/cuda/rows/matmul.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eta::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kMaxCandidates = 24;
// Steps of more rows are prefill. There the library's first choice is as good as any, and there are
// too many sizes to measure each.
constexpr int64_t kMostMeasuredRows = 128;
constexpr int kMeasurements = 3;
// A candidate must beat the library's first choice by this factor. A smaller gain is noise, and a
// choice that changes from run to run changes last bits.
constexpr float kLeastGain = 0.95f;

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

// The alignment of an address, as far as the library makes a difference.
uint32_t AlignmentOf(const void* data) {
  constexpr uintptr_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(data) | kMost;
  return uint32_t{1} << std::countr_zero(address);
}

}  // namespace

// cuBLAS stores columns first, so it sees a row-major matrix as its transpose: out^T [n, rows] =
// weight [n, k] * x^T [k, rows], where weight is stored as its transpose.
struct MatMuls::Product {
  explicit Product(const CublasLt& library) : lt(library) {}
  ~Product() {
    if (out != nullptr) lt.MatrixLayoutDestroy(out);
    if (x != nullptr) lt.MatrixLayoutDestroy(x);
    if (weight != nullptr) lt.MatrixLayoutDestroy(weight);
    if (operation != nullptr) lt.MatmulDescDestroy(operation);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  const CublasLt& lt;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  float beta = 0.0f;
  cublasLtMatmulAlgo_t algorithm = {};
};

absl::StatusOr<std::unique_ptr<MatMuls>> MatMuls::Open(Device& device, Scratch& scratch) {
  const absl::StatusOr<const CublasLt*> lt = CublasLt::Load();
  if (!lt.ok()) return lt.status();
  auto products = std::unique_ptr<MatMuls>(new MatMuls(device, scratch, **lt));
  const cublasStatus_t created = (*lt)->Create(&products->handle_);
  if (created != CUBLAS_STATUS_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat("backend: cuda: cuBLASLt: ", (*lt)->GetStatusString(created)));
  }
  device.Check(cudaEventCreate(&products->begin_), "event");
  device.Check(cudaEventCreate(&products->end_), "event");
  scratch.Get(Scratch::Use::kMatMul, kWorkspaceBytes);
  if (!device.status().ok()) return device.status();
  return products;
}

MatMuls::MatMuls(Device& device, Scratch& scratch, const CublasLt& lt)
    : device_(device), scratch_(scratch), lt_(lt) {}

MatMuls::~MatMuls() {
  device_.MakeCurrent();
  products_.clear();
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  if (handle_ != nullptr) lt_.Destroy(handle_);
}

void MatMuls::Check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  device_.Fail(
      absl::InternalError(absl::StrCat("cuda: device ", device_.index(), ": ", std::string(what),
                                       ": ", lt_.GetStatusString(status))));
}

void MatMuls::Run(const TensorView& x, const Weight& weight, const TensorView& out,
                  bool accumulate) {
  if (out.rows == 0) return;
  if (x.dtype != weight.dtype) {
    device_.Fail(absl::InvalidArgumentError(absl::StrCat("x: ", std::string(Name(x.dtype)),
                                                         ", but the weight was packed as ",
                                                         std::string(Name(weight.dtype)))));
    return;
  }
  const Shape shape = {.rows = out.rows,
                       .n = weight.rows,
                       .k = weight.cols,
                       .x_stride = x.stride,
                       .out_stride = out.stride,
                       .dtype = weight.dtype,
                       .out_dtype = out.dtype,
                       .accumulate = accumulate,
                       .x_alignment = AlignmentOf(x.data),
                       .weight_alignment = AlignmentOf(weight.data),
                       .out_alignment = AlignmentOf(out.data)};
  if (scratch_.Get(Scratch::Use::kMatMul, kWorkspaceBytes) == nullptr) return;
  const Product* product = Find(shape, x.data, weight.data);
  if (product == nullptr) return;
  Check(Multiply(*product, product->algorithm, x.data, weight.data, out.data), "matrix product");
}

const MatMuls::Product* MatMuls::Find(const Shape& shape, const void* x, const void* weight) {
  const auto found = products_.find(shape);
  if (found != products_.end()) return found->second.get();
  auto product = std::make_unique<Product>(lt_);
  Describe(shape, *product);
  if (device_.status().ok()) Choose(shape, x, weight, *product);
  if (!device_.status().ok()) return nullptr;
  return products_.emplace(shape, std::move(product)).first->second.get();
}

void MatMuls::Describe(const Shape& shape, Product& product) {
  constexpr std::string_view kWhat = "description of a matrix product";
  const cudaDataType_t type = TypeOf(shape.dtype);
  const auto n = static_cast<uint64_t>(shape.n);
  const auto k = static_cast<uint64_t>(shape.k);
  const auto rows = static_cast<uint64_t>(shape.rows);
  // For float32 this type means float32 products. TF32 has a type of its own.
  Check(lt_.MatmulDescCreate(&product.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), kWhat);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  if (product.operation != nullptr) {
    Check(lt_.MatmulDescSetAttribute(product.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                     sizeof(transpose)),
          kWhat);
  }
  Check(lt_.MatrixLayoutCreate(&product.weight, type, k, n, shape.k), kWhat);
  Check(lt_.MatrixLayoutCreate(&product.x, type, k, rows, shape.x_stride), kWhat);
  Check(lt_.MatrixLayoutCreate(&product.out, TypeOf(shape.out_dtype), n, rows, shape.out_stride),
        kWhat);
  product.beta = shape.accumulate ? 1.0f : 0.0f;
}

void MatMuls::Choose(const Shape& shape, const void* x, const void* weight, Product& product) {
  cublasLtMatmulPreference_t preference = nullptr;
  Check(lt_.MatmulPreferenceCreate(&preference), "choice of a matrix product");
  if (preference == nullptr) return;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    Check(lt_.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
          "choice of a matrix product");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.weight_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment);
  cublasLtMatmulHeuristicResult_t candidates[kMaxCandidates] = {};
  int count = 0;
  const cublasStatus_t status =
      lt_.MatmulAlgoGetHeuristic(handle_, product.operation, product.weight, product.x, product.out,
                                 product.out, preference, kMaxCandidates, candidates, &count);
  lt_.MatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    device_.Fail(absl::InternalError(absl::StrCat(
        "cuda: cuBLASLt has no product for [", shape.rows, ", ", shape.k, "] x [", shape.n, ", ",
        shape.k, "] in ", std::string(Name(shape.dtype)), ": ", lt_.GetStatusString(status))));
    return;
  }
  product.algorithm = candidates[0].algo;
  if (shape.rows > kMostMeasuredRows) return;

  // The measured products are written here. Writing also clears the L2 cache between them, since
  // weights come from memory in a step.
  const size_t out_bytes =
      static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.out_stride) * sizeof(float);
  void* out = nullptr;
  const size_t bytes = std::max(out_bytes, 2 * device_.l2_bytes());
  if (cudaMalloc(&out, bytes) != cudaSuccess) {
    cudaGetLastError();  // memory is short, so the first choice stays
    return;
  }
  const auto measure = [&](const cublasLtMatmulAlgo_t& algorithm) {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < kMeasurements; ++i) {
      device_.Check(cudaMemsetAsync(out, 0, bytes, device_.stream()), "choice of a matrix product");
      best = std::min(best, Milliseconds(product, algorithm, x, weight, out));
    }
    return best;
  };
  float best = kLeastGain * measure(candidates[0].algo);
  for (int i = 1; i < count; ++i) {
    if (candidates[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const float time = measure(candidates[i].algo);
    if (time >= best) continue;
    best = time;
    product.algorithm = candidates[i].algo;
  }
  device_.Check(cudaFree(out), "choice of a matrix product");
}

float MatMuls::Milliseconds(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                            const void* x, const void* weight, void* out) {
  cudaEventRecord(begin_, device_.stream());
  const cublasStatus_t status = Multiply(product, algorithm, x, weight, out);
  cudaEventRecord(end_, device_.stream());
  device_.Check(cudaEventSynchronize(end_), "choice of a matrix product");
  float milliseconds = std::numeric_limits<float>::infinity();
  if (status == CUBLAS_STATUS_SUCCESS) cudaEventElapsedTime(&milliseconds, begin_, end_);
  return milliseconds;
}

cublasStatus_t MatMuls::Multiply(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                                 const void* x, const void* weight, void* out) {
  const float alpha = 1.0f;
  return lt_.Matmul(handle_, product.operation, &alpha, weight, product.weight, x, product.x,
                    &product.beta, out, product.out, out, product.out, &algorithm,
                    scratch_.Get(Scratch::Use::kMatMul, kWorkspaceBytes), kWorkspaceBytes,
                    device_.stream());
}

}  // namespace eta::cuda
