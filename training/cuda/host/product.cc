#include "training/cuda/host/product.h"

#include <bit>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta::training::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

cudaDataType_t TypeOf(DType dtype) {
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

// The alignment of matrices `step` elements apart, as far as the library makes a difference.
uint32_t AlignmentOf(const Tensor& tensor, int64_t step) {
  constexpr uintptr_t kMost = 256;
  const auto bytes = static_cast<uintptr_t>(step) * SizeOf(tensor.dtype);
  return uint32_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(tensor.data) | bytes | kMost);
}

}  // namespace

struct Products::Plan {
  explicit Plan(const eta::cuda::CublasLt& library) : lt(library) {}
  ~Plan() {
    if (out != nullptr) lt.MatrixLayoutDestroy(out);
    if (left != nullptr) lt.MatrixLayoutDestroy(left);
    if (right != nullptr) lt.MatrixLayoutDestroy(right);
    if (operation != nullptr) lt.MatmulDescDestroy(operation);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const eta::cuda::CublasLt& lt;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr;   // b, as the library sees it
  cublasLtMatrixLayout_t right = nullptr;  // a
  cublasLtMatrixLayout_t out = nullptr;
  float beta = 0.0f;
  cublasLtMatmulAlgo_t algorithm = {};
};

absl::StatusOr<std::unique_ptr<Products>> Products::Open(Context& context) {
  ASSIGN_OR_RETURN(const eta::cuda::CublasLt* const lt, eta::cuda::CublasLt::Load());
  auto products = std::unique_ptr<Products>(new Products(context, *lt));
  const cublasStatus_t created = lt->Create(&products->handle_);
  if (created != CUBLAS_STATUS_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat("backend: cuda: cuBLASLt: ", lt->GetStatusString(created)));
  }
  return products;
}

Products::Products(Context& context, const eta::cuda::CublasLt& lt) : context_(context), lt_(lt) {}

Products::~Products() {
  context_.device.MakeCurrent();
  plans_.clear();
  if (handle_ != nullptr) lt_.Destroy(handle_);
}

void Products::Check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  context_.device.Fail(
      absl::InternalError(absl::StrCat("cuda: device ", context_.device.index(), ": ",
                                       std::string(what), ": ", lt_.GetStatusString(status))));
}

void Products::Multiply(const Factor& a, const Factor& b, const Tensor& out, bool accumulate,
                        const Batch& batch) {
  if (out.rows == 0 || out.cols == 0) return;
  const Shape shape = {.rows = out.rows,
                       .cols = out.cols,
                       .inner = a.transposed ? a.tensor.rows : a.tensor.cols,
                       .a_stride = a.tensor.stride,
                       .b_stride = b.tensor.stride,
                       .out_stride = out.stride,
                       .a_transposed = a.transposed,
                       .b_transposed = b.transposed,
                       .out_dtype = out.dtype,
                       .accumulate = accumulate,
                       .a_alignment = AlignmentOf(a.tensor, batch.a_step),
                       .b_alignment = AlignmentOf(b.tensor, batch.b_step),
                       .out_alignment = AlignmentOf(out, batch.out_step),
                       .batch = batch};
  void* workspace = context_.workspace.Get(Workspace::Use::kProduct, kWorkspaceBytes);
  if (workspace == nullptr) return;
  const Plan* plan = Find(shape);
  if (plan == nullptr) return;
  const float alpha = 1.0f;
  Check(lt_.Matmul(handle_, plan->operation, &alpha, b.tensor.data, plan->left, a.tensor.data,
                   plan->right, &plan->beta, out.data, plan->out, out.data, plan->out,
                   &plan->algorithm, workspace, kWorkspaceBytes, context_.device.stream()),
        "matrix product");
}

const Products::Plan* Products::Find(const Shape& shape) {
  const auto found = plans_.find(shape);
  if (found != plans_.end()) return found->second.get();
  auto plan = std::make_unique<Plan>(lt_);
  Describe(shape, *plan);
  if (context_.device.status().ok()) Choose(shape, *plan);
  if (!context_.device.status().ok()) return nullptr;
  return plans_.emplace(shape, std::move(plan)).first->second.get();
}

void Products::Describe(const Shape& shape, Plan& plan) {
  constexpr std::string_view kWhat = "description of a matrix product";
  Check(lt_.MatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), kWhat);
  if (plan.operation == nullptr) return;
  const auto transpose = [&](cublasLtMatmulDescAttributes_t factor, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    Check(lt_.MatmulDescSetAttribute(plan.operation, factor, &operation, sizeof(operation)), kWhat);
  };
  transpose(CUBLASLT_MATMUL_DESC_TRANSA, shape.b_transposed);
  transpose(CUBLASLT_MATMUL_DESC_TRANSB, shape.a_transposed);
  const auto rows = static_cast<uint64_t>(shape.rows);
  const auto cols = static_cast<uint64_t>(shape.cols);
  const auto inner = static_cast<uint64_t>(shape.inner);
  // As stored: the columns of the row-major matrix come first.
  const auto create = [&](cublasLtMatrixLayout_t* layout, DType dtype, uint64_t stored_cols,
                          uint64_t stored_rows, int64_t stride, int64_t step) {
    Check(lt_.MatrixLayoutCreate(layout, TypeOf(dtype), stored_cols, stored_rows, stride), kWhat);
    if (*layout == nullptr || shape.batch.count == 1) return;
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
      Check(lt_.MatrixLayoutSetAttribute(*layout, attribute, &value, sizeof(value)), kWhat);
    };
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, shape.batch.count);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
  };
  create(&plan.left, DType::kBFloat16, shape.b_transposed ? inner : cols,
         shape.b_transposed ? cols : inner, shape.b_stride, shape.batch.b_step);
  create(&plan.right, DType::kBFloat16, shape.a_transposed ? rows : inner,
         shape.a_transposed ? inner : rows, shape.a_stride, shape.batch.a_step);
  create(&plan.out, shape.out_dtype, cols, rows, shape.out_stride, shape.batch.out_step);
  plan.beta = shape.accumulate ? 1.0f : 0.0f;
}

void Products::Choose(const Shape& shape, Plan& plan) {
  constexpr std::string_view kWhat = "choice of a matrix product";
  cublasLtMatmulPreference_t preference = nullptr;
  Check(lt_.MatmulPreferenceCreate(&preference), kWhat);
  if (preference == nullptr) return;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    Check(lt_.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), kWhat);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment);
  // Parts of a sum are not added in place, where their order would be that of their arrival.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  cublasLtMatmulHeuristicResult_t choice = {};
  int count = 0;
  const cublasStatus_t status =
      lt_.MatmulAlgoGetHeuristic(handle_, plan.operation, plan.left, plan.right, plan.out, plan.out,
                                 preference, 1, &choice, &count);
  lt_.MatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    context_.device.Fail(absl::InternalError(
        absl::StrCat("cuda: cuBLASLt has no product for out [", shape.rows, ", ", shape.cols,
                     "], inner ", shape.inner, ": ", lt_.GetStatusString(status))));
    return;
  }
  plan.algorithm = choice.algo;
}

}  // namespace eta::training::cuda
