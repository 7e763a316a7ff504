#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/checks.h"
#include "kernels/cuda/decode/decode_cluster.h"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/host/device.h"
#include "kernels/cuda/host/step_plan.h"
#include "kernels/cuda/host/transfer.h"
#include "kernels/cuda/index/unpack_record.h"
#include "kernels/cuda/packed/pack_matrix.h"
#include "kernels/cuda/packed/unpack_weight.h"
#include "kernels/cuda/packed/write_matrix.h"
#include "kernels/cuda/prefill/admitted_tiles.h"
#include "kernels/cuda/prefill/prefill_widen.h"
#include "kernels/cuda/program.h"
#include "kernels/cuda/rows/matmul.h"
#include "kernels/cuda/rows/sampling.h"
#include "kernels/cuda/targets.h"
#include "kernels/weights/host_rows.h"

namespace eta::cuda {
namespace {

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(int device, std::byte* data, size_t size) : Buffer(data, size), device_(device) {}
  ~DeviceBuffer() override {
    cudaSetDevice(device_);
    cudaFree(data());
  }

 private:
  int device_;
};

class CudaBackend final : public Backend, public ExpertOps {
 public:
  CudaBackend(std::unique_ptr<Device> device, DType compute)
      : device_(std::move(device)),
        compute_(compute),
        scratch_(*device_),
        uploads_(*device_),
        results_(*device_),
        graphs_(*device_) {}

  ~CudaBackend() override {
    device_->MakeCurrent();
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }

  absl::Status Open() {
    absl::StatusOr<std::unique_ptr<MatMuls>> products = MatMuls::Open(*device_, scratch_);
    if (!products.ok()) return products.status();
    products_ = *std::move(products);
    device_->Check(cudaEventCreate(&begin_), "event");
    device_->Check(cudaEventCreate(&end_), "event");
    Plan({});
    return device_->status();
  }

  std::string_view name() const override { return "cuda"; }
  std::string description() const override {
    return absl::StrCat("cuda, device ", device_->index(), ", ", device_->name(), ", ",
                        device_->num_sms(), " SMs, ", std::string(Name(compute_)), " products");
  }

  DType activation_dtype() const override { return compute_; }
  int64_t PaddedRows(int64_t rows) const override { return cuda::PaddedRows(rows); }

  absl::StatusOr<size_t> FreeMemory() const override {
    device_->MakeCurrent();
    size_t free = 0;
    size_t total = 0;
    const cudaError_t error = cudaMemGetInfo(&free, &total);
    if (error == cudaSuccess) return free;
    return absl::InternalError(absl::StrCat("cuda: device ", device_->index(),
                                            ": free memory: ", cudaGetErrorString(error)));
  }

  size_t LateMemory(const KvGeometry& geometry, int64_t num_query_heads, int64_t context,
                    int64_t rows, int64_t decode_rows) const override {
    const int64_t capacity = context / geometry.block_size + 1;
    const int64_t group = num_query_heads / geometry.num_kv_heads;
    // Only with this kind there are relative thresholds.
    const size_t masses = geometry.index == IndexKind::kOutlier
                              ? MassBytes(decode_rows, geometry.num_kv_heads, group, capacity)
                              : 0;
    return WideBytes(geometry, context) + masses +
           PoolBlockBytes(decode_rows, geometry.num_kv_heads, capacity) +
           AdmittedTilesBytes(geometry, num_query_heads, rows, context) +
           ShadowBytes(context, num_query_heads, geometry.head_dim);
  }

  std::optional<double> last_step_seconds() const override { return last_step_seconds_; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    device_->MakeCurrent();
    void* data = nullptr;
    const cudaError_t error = AllocateMemory(&data, std::max<size_t>(bytes, 1));
    if (error == cudaSuccess) {
      return std::unique_ptr<Buffer>(
          std::make_unique<DeviceBuffer>(device_->index(), static_cast<std::byte*>(data), bytes));
    }
    cudaGetLastError();  // forgets the error: the device itself is well
    const std::string message = absl::StrCat("buffer: device ", device_->index(), ": ", bytes,
                                             " bytes: ", cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message)
                                              : absl::InternalError(message);
  }

  void Upload(std::byte* to, const void* from, size_t bytes) override {
    Flush();
    Copy(to, from, bytes, cudaMemcpyHostToDevice, "upload");
  }
  void Download(void* to, const std::byte* from, size_t bytes) override {
    Flush();
    Copy(to, from, bytes, cudaMemcpyDeviceToHost, "download");
  }

  absl::StatusOr<std::unique_ptr<Matrix>> Pack(std::span<const HostMatrix> parts,
                                               WeightFormat format) override {
    const absl::Status fits = CheckParts(parts);
    if (!fits.ok()) return fits;
    const bool packed = KeepsPacked(parts, format, compute_);
    auto matrix = packed ? PackMatrix(*this, parts, format, compute_)
                         : WriteMatrix(*this, parts, format, compute_);
    if (!matrix.ok()) return matrix.status();
    // Memory that products of many rows unpack into: it is not there later.
    if (packed) scratch_.Get(Scratch::Use::kUnpacked, UnpackedBytes((*matrix)->weight()));
    if (!ok()) return NoMemoryOrLost();
    return std::unique_ptr<Matrix>(*std::move(matrix));
  }

  absl::StatusOr<KvLayout> Layout(const KvGeometry& geometry) const override {
    const absl::Status fits = CheckGeometry(geometry);
    if (!fits.ok()) return fits;
    if (geometry.dtype == DType::kFloat8E4M3 && !KvTile(geometry).swizzled) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv_dtype: float8_e4m3 on cuda needs head_dim 64, 96, 128 or 256 and "
                       "block_size 16, 32, 64 or 128, not ",
                       geometry.head_dim, " and ", geometry.block_size));
    }
    if (RecordMemory(geometry) > device_->shared_memory_per_block()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "block_size ", geometry.block_size, " with head_dim ", geometry.head_dim, " needs ",
          RecordMemory(geometry), " bytes of shared memory, and the GPU has ",
          device_->shared_memory_per_block(), ": take a smaller block_size"));
    }
    const KvTile tile(geometry);
    return KvLayout{tile.block_bytes(), tile.record_bytes()};
  }

  BlockRecord ReadRecord(const KvGeometry& geometry, const KvLayerView& kv, int32_t block,
                         int32_t kv_head) const override {
    const KvTile tile(geometry);
    std::vector<std::byte> bytes(tile.record_bytes());
    Copy(bytes.data(), kv.records + static_cast<size_t>(block) * bytes.size(), bytes.size(),
         cudaMemcpyDeviceToHost, "record of a block");
    const auto d = static_cast<size_t>(geometry.head_dim);
    std::vector<float> centre(d);
    if (kv.index_centre != nullptr) {
      Copy(centre.data(), kv.index_centre + static_cast<size_t>(kv_head) * d, d * sizeof(float),
           cudaMemcpyDeviceToHost, "centre of the index");
    }
    return UnpackRecord(tile, bytes, kv_head, centre);
  }

  bool defers() const override { return true; }

  void Plan(const BatchView& batch) override {
    if (!program_.empty()) Flush();
    ClearMemory();  // what runs has its inputs, and its results' places, by now
    block_size_ = 0;
    step_ = PackedStep();
    if (uploads_.BeginStep(StepBytes(batch))) step_ = PackStep(batch, uploads_.HostAt(0));
    program_.Clear(step_.shape());
    launches_ = step_.has_prefill;
  }

  void Embed(const EmbedParams& params) override {
    Add(EmbedOp{WeightOf(params.table), params.out, params.scale});
  }
  void RmsNorm(const RmsNormParams& params) override {
    const bool gathers = !params.rows.empty();
    const auto count = static_cast<size_t>(params.out.rows);
    const int64_t rows = gathers ? AddPiece(count * sizeof(int32_t)) : 0;
    if (!ok()) return;
    if (gathers) {
      // Rows of `out` after those asked for take row 0.
      auto* to = reinterpret_cast<int32_t*>(uploads_.HostAt(rows));
      const auto end =
          std::ranges::copy(params.rows.first(std::min(count, params.rows.size())), to);
      std::fill(end.out, to + count, 0);
    }
    Add(RmsNormOp{params.x, params.weight, params.eps, gathers, rows, params.out, params.add});
  }
  void MatMul(const MatMulParams& params) override {
    Add(MatMulOp{params.x, WeightOf(params.weight), params.out, params.accumulate});
  }
  void AddBias(const AddBiasParams& params) override { Add(params); }
  void NormHeads(const NormHeadsParams& params) override { Add(params); }
  void Rope(const RopeParams& params) override { Add(params); }
  void AppendKv(const AppendKvParams& params) override { Add(params); }

  void PredictThresholds(const ThresholdParams& params) override {
    const int64_t frozen =
        AddProfiles(&StepProfile::frozen_thresholds, params.layer, params.out.cols);
    if (!ok()) return;
    ThresholdOp op = {params, frozen};
    op.params.layer = 0;
    Add(op);
  }

  void SelectBlocks(const SelectBlocksParams& params) override {
    if (!ok()) return;
    SetBlockSize(params.geometry.block_size);
    const int64_t head_z = AddProfiles(&StepProfile::head_z, params.layer, params.num_query_heads);
    if (!ok()) return;
    const CountsTarget counts = AddCounts(params);
    SelectBlocksOp op = {params,
                         step_.relative,
                         step_.reads_all,
                         head_z,
                         counts.tokens_attended,
                         counts.tokens_read,
                         step_.confirms ? counts.values_read : -1};
    op.params.layer = 0;
    op.params.counts = {};
    Add(op);
    targets_.push_back(counts);
  }

  void ListBlocks(const ListBlocksParams& params) override {
    if (step_.decode_rows.empty()) return;
    const auto rows = std::min<int64_t>(step_.num_rows, params.selection.rows);
    const auto bytes =
        static_cast<size_t>(rows * params.geometry.num_kv_heads * params.selection.capacity) *
        sizeof(uint32_t);
    const int64_t heads = AddPiece(bytes);
    if (!ok()) return;
    std::memcpy(uploads_.HostAt(heads), params.heads, bytes);
    const CountsTarget counts = AddCounts(params);
    ListBlocksOp op = {params, heads, counts.tokens_attended, counts.tokens_read,
                       step_.confirms ? counts.values_read : -1};
    op.params.heads = nullptr;
    op.params.counts = {};
    Add(op);
    targets_.push_back(counts);
  }

  void SelectPrefillBlocks(const SelectPrefillParams& params) override {
    if (step_.sparse_rows.empty() || !ok()) return;
    const int64_t head_z = AddProfiles(&StepProfile::head_z, params.layer, params.num_query_heads);
    if (!ok()) return;
    CountsTarget counts = AddCounts(params);
    counts.kind = RowKind::kPrefill;
    counts.values_read = counts.tokens_read;
    SelectPrefillOp op = {params, step_.sparse_relative, head_z, counts.tokens_attended,
                          counts.tokens_read};
    op.params.layer = 0;
    op.params.counts = {};
    Add(op);
    targets_.push_back(counts);
  }

  // Launches cost time in every layer, so an op that would find no row of its kind is left out.
  void DecodeAttention(const AttentionParams& params) override {
    if (step_.decode_rows.empty()) return;
    const bool windowed = params.window > 0;
    const bool even = (windowed && params.window <= kShortKeys) ||
                      (step_.even && !HasFewLongLists(params.geometry));
    DecodeAttentionOp op = {params, step_.confirms && !windowed, even};
    op.params.values_read = nullptr;
    Add(op);
  }
  void PrefillAttention(const AttentionParams& params) override {
    if (step_.has_prefill) Add(PrefillAttentionOp{params});
  }

  void MeasureShadow(const ShadowParams& params) override {
    if (params.rows.empty() || !ok()) return;
    const size_t count = params.rows.size() * static_cast<size_t>(params.attention.num_query_heads);
    ShadowOp op = {params.attention,
                   {params.rows.begin(), params.rows.end()},
                   results_.Add(count * sizeof(float)),
                   results_.Add(count * sizeof(float))};
    targets_.push_back(ShadowTarget{op.mass, op.error, count, params.mass, params.error});
    launches_ = true;
    Add(std::move(op));
  }
  void CountRecall(const RecallParams& params) override {
    const int32_t heads = params.attention.num_query_heads;
    const int64_t above = results_.Add(2 * static_cast<size_t>(heads) * sizeof(int64_t));
    Add(RecallOp{params.attention, above});
    targets_.push_back(RecallTarget{above, heads, params.above, params.above_admitted});
  }
  void CollectCalibration(const CalibrationParams& params) override {
    if (step_.calibrates) Add(CalibrationOp{params});
  }
  void SwiGlu(const SwiGluParams& params) override { Add(params); }

  ExpertOps& experts() override { return *this; }

  absl::StatusOr<std::unique_ptr<ExpertStack>> Stack(
      std::vector<std::unique_ptr<Matrix>> matrices) override {
    return StackExperts(*this, *device_, std::move(matrices));
  }

  void RouteRows(const RouteRowsParams& params) override {
    const int32_t experts = params.choice.num_experts;
    RouteRowsOp op = {params, -1};
    op.params.rows_of_experts = nullptr;
    if (params.rows_of_experts != nullptr) {
      op.counts = results_.Add(static_cast<size_t>(experts) * sizeof(int32_t));
      targets_.push_back(ExpertsTarget{op.counts, experts, params.rows_of_experts});
    }
    Add(op);
  }
  void MultiplyExperts(const MultiplyExpertsParams& params) override {
    const auto& stack = static_cast<const DeviceExpertStack&>(*params.weights);
    Add(ExpertProduct{.x = params.x,
                      .by_rows = params.by_rows,
                      .choice = params.choice,
                      .weights = stack.weights(),
                      .out = params.out,
                      .bias = params.bias});
  }
  void AddExperts(const AddExpertsParams& params) override { Add(params); }

  void Sample(const SampleParams& params) override {
    if (params.rows.empty()) return;
    const auto num_rows =
        static_cast<int32_t>(PaddedRows(static_cast<int64_t>(params.rows.size())));
    const int64_t rows = AddPiece(PackedBytes(params.rows, num_rows));
    if (!ok()) return;
    cuda::Pack(params.rows, num_rows, uploads_.HostAt(rows));
    const int64_t results = results_.Add(ResultBytes(params.rows, num_rows));
    Add(SampleOp{params.logits, num_rows, rows, results});
    targets_.push_back(SampleTarget{results, num_rows, params.rows});
  }

  void SetTokens(std::span<const int32_t> tokens) override {
    if (!ok()) return;
    cuda::SetTokens(tokens, step_.padded_rows, uploads_.HostAt(0));
    uploads_.ChangeStep();
  }
  void Launch() override { Start(); }
  void Discard() override {
    ClearProgram();
    ClearMemory();
  }

  absl::Status Finish() override {
    if (!runs_) Start();
    Await();
    if (program_.empty()) ClearMemory();  // else the next step is noted
    last_step_seconds_ = std::exchange(step_seconds_, 0.0);
    if (ok()) return absl::OkStatus();
    if (!absl::IsResourceExhausted(device_->status())) return device_->status();
    // Ops of the step were left out, so scratch memory may not be as they would have left it.
    device_->MakeCurrent();
    const cudaError_t rest = cudaStreamSynchronize(device_->stream());
    scratch_.Clear();
    absl::Status shortage = device_->TakeShortage();
    device_->Check(rest, "step");
    return ok() ? shortage : device_->status();
  }

 private:
  // Of heads of 256: for others neither way was measured with lists as long.
  bool HasFewLongLists(const KvGeometry& geometry) const {
    if (geometry.head_dim != kWideHeadDim) return false;
    const auto block_bytes = static_cast<int64_t>(KvTile(geometry).head_bytes());
    return AreFewAndLong(device_->num_sms(), int64_t{step_.padded_rows} * geometry.num_kv_heads,
                         step_.longest * block_bytes / geometry.block_size);
  }

  bool ok() const { return device_->status().ok(); }
  static Weight WeightOf(const Matrix* matrix) {
    return static_cast<const DeviceMatrix*>(matrix)->weight();
  }
  void Add(Op op) {
    if (!ok()) return;
    program_.Add(std::move(op));
    if (!launches_) graphs_.Follow(program_);
  }
  int64_t AddPiece(size_t bytes) { return ok() ? uploads_.AddPiece(bytes) : 0; }

  // Adds results for the counts of SelectBlocks, of decode rows, or of ops like it. Values read are
  // the tokens read where no row has confirmed reads.
  template <typename T>
  CountsTarget AddCounts(const T& params) {
    const auto rows = static_cast<size_t>(params.q.rows);
    const auto query_heads = static_cast<size_t>(params.num_query_heads);
    const auto kv_heads = static_cast<size_t>(params.geometry.num_kv_heads);
    const int64_t attended = results_.Add(rows * query_heads * sizeof(int32_t));
    const int64_t read = results_.Add(rows * kv_heads * sizeof(int32_t));
    const int64_t values = step_.confirms ? results_.Add(rows * kv_heads * sizeof(int32_t)) : read;
    return {RowKind::kDecode,
            attended,
            read,
            values,
            params.num_query_heads,
            params.geometry.num_kv_heads,
            params.counts};
  }

  // Adds a piece [profiles of the step, heads] with the rows of their tables for `layer`. Returns 0
  // if no profile has such a table. It is copied in every step, so a profile may go when its last
  // step has finished.
  int64_t AddProfiles(const float* StepProfile::*table, int32_t layer, int64_t heads) {
    const auto has_table = [&](const StepProfile& profile) { return profile.*table != nullptr; };
    if (std::ranges::none_of(step_.profiles, has_table)) return 0;
    // Its size is padded to a power of two, so that few programs differ by it.
    const size_t row_bytes = static_cast<size_t>(heads) * sizeof(float);
    const int64_t piece = AddPiece(std::bit_ceil(step_.profiles.size()) * row_bytes);
    if (!ok()) return 0;
    std::byte* to = uploads_.HostAt(piece);
    for (const StepProfile& profile : step_.profiles) {
      if (has_table(profile)) std::memcpy(to, profile.*table + layer * heads, row_bytes);
      to += row_bytes;
    }
    return piece;
  }

  void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
            std::string_view what) const {
    if (bytes == 0 || !ok()) return;
    device_->MakeCurrent();
    device_->Check(cudaMemcpyAsync(to, from, bytes, kind, device_->stream()), what);
    device_->Check(cudaStreamSynchronize(device_->stream()), what);
  }

  absl::Status NoMemoryOrLost() {
    absl::Status shortage = device_->TakeShortage();
    return ok() ? shortage : device_->status();
  }

  // How rows are screened depends on the block size, which Plan() does not know.
  void SetBlockSize(int32_t block_size) {
    if (block_size == block_size_) return;
    if (block_size_ != 0) Flush();
    block_size_ = block_size;
    PackScreening(step_.padded_rows, block_size, uploads_.HostAt(0));
    uploads_.ChangeStep();
  }

  // Runs the recorded ops and waits for them.
  void Flush() {
    Start();
    Await();
    ClearMemory();
  }

  // Puts the recorded ops on the stream, behind the part of the step that runs already, if one
  // does.
  void Start() {
    if (!program_.empty() && ok() && ReserveResults()) {
      device_->MakeCurrent();
      if (!runs_) {
        device_->Check(cudaEventRecord(begin_, device_->stream()), "begin of a step");
        running_rows_ = {step_.decode_rows, step_.sparse_rows};
      }
      uploads_.Send();
      Run();
      results_.Fetch();
      device_->Check(cudaEventRecord(end_, device_->stream()), "end of a step");
      std::ranges::move(targets_, std::back_inserter(running_targets_));
      runs_ = true;
    }
    ClearProgram();
  }

  bool ReserveResults() {
    // Growth would lose what the part that runs brings.
    if (runs_ && !results_.fits()) Await();
    return results_.Reserve();
  }

  void Await() {
    if (!std::exchange(runs_, false)) return;
    device_->Check(cudaStreamSynchronize(device_->stream()), "step");
    if (ok()) Deliver();
    running_targets_.clear();
  }

  // Forgets the recorded ops.
  void ClearProgram() {
    program_.Clear(step_.shape());
    launches_ = step_.has_prefill;
    targets_.clear();
  }
  // Forgets where the inputs and results of ops stand. Those of ops that follow stand behind them
  // till then.
  void ClearMemory() {
    uploads_.ClearPieces();
    results_.Clear();
  }

  void Run() {
    const Machine machine = {*device_, scratch_, *products_, uploads_, results_};
    const auto launch = [&] { program_.Launch(machine); };
    if (launches_) {
      launch();
      return;
    }
    const int64_t generation =
        scratch_.generation() + uploads_.generation() + results_.generation();
    graphs_.Run(program_, generation, launch);
  }

  void Deliver() {
    float milliseconds = 0.0f;
    device_->Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "time of a step");
    step_seconds_ += static_cast<double>(milliseconds) / 1e3;
    for (const Target& target : running_targets_) {
      std::visit([this](const auto& to) { to.Take(results_, running_rows_); }, target);
    }
  }

  std::unique_ptr<Device> device_;
  DType compute_;
  Scratch scratch_;
  std::unique_ptr<MatMuls> products_;
  Uploads uploads_;
  Results results_;
  GraphCache graphs_;
  cudaEvent_t begin_ = nullptr;  // begin of the program that runs, or ran last
  cudaEvent_t end_ = nullptr;

  PackedStep step_;
  int32_t block_size_ = 0;  // the block size that screening is packed for; 0: not packed
  Program program_;
  bool launches_ = false;  // the program runs once: a prompt's rows, a shadow
  std::vector<Target> targets_;
  // The program that runs. The members above may already hold the next step.
  bool runs_ = false;
  std::vector<Target> running_targets_;
  CountedRows running_rows_;
  double step_seconds_ = 0.0;  // seconds of all programs since the last Finish
  double last_step_seconds_ = 0.0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(int device, DType compute) {
  if (!IsFloat(compute)) {
    return absl::InvalidArgumentError("compute: not bfloat16, float16 or float32");
  }
  absl::StatusOr<std::unique_ptr<Device>> opened = Device::Open(device);
  if (!opened.ok()) return opened.status();
  auto backend = std::make_unique<CudaBackend>(*std::move(opened), compute);
  absl::Status ready = backend->Open();
  if (!ready.ok()) return ready;
  return backend;
}

}  // namespace eta::cuda
