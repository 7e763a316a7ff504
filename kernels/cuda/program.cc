#include "kernels/cuda/program.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/fused_product.h"
#include "kernels/cuda/host/step_plan.h"
#include "kernels/cuda/packed/unpack_weight.h"
#include "kernels/cuda/rows/product_chain.h"
#include "kernels/cuda/rows/sampling.h"

namespace eta::cuda {
namespace {

// A graph of a large model takes a few megabytes. A server meets a program for each padded row
// count times each row count of logits.
constexpr size_t kMaxGraphs = 64;

// Launches ops in their order.
class Launcher {
 public:
  Launcher(const Machine& machine, const StepShape& shape)
      : machine_(machine),
        shape_(shape),
        layout_(shape.padded_rows, shape.num_tables),
        context_{machine.device, machine.scratch, layout_.View(machine.uploads.DeviceAt(0)), {}} {
    TakeTable(0);
  }

  // Launches the first of `ops`, or as many as one kernel does together. Returns how many it
  // launched.
  size_t LaunchFront(std::span<const Op> ops) {
    if (const size_t launched = LaunchExperts(ops); launched > 0) return launched;
    // A layer may have neither norms of heads nor RoPE nor thresholds.
    const auto* norms = OpAt<NormHeadsParams>(ops, 0);
    size_t stores = norms == nullptr ? 0 : 1;
    const auto* rope = OpAt<RopeParams>(ops, stores);
    stores += rope == nullptr ? 0 : 1;
    const auto* thresholds = OpAt<ThresholdOp>(ops, stores + 1);
    if (LaunchTogether(norms, rope, OpAt<AppendKvParams>(ops, stores), thresholds)) {
      return stores + 1 + (thresholds != nullptr ? 1 : 0);
    }
    if (const size_t launched = LaunchProduct(ops); launched > 0) return launched;
    if (LaunchTogether(OpAt<SelectBlocksOp>(ops, 0), OpAt<DecodeAttentionOp>(ops, 1))) return 2;
    std::visit(*this, ops.front());
    return 1;
  }

  void operator()(const EmbedOp& op) {
    if (op.table.packed()) return EmbedPacked(For(op.out), op.table, op.scale, op.out);
    Embed(For(op.out), op.table.data, op.table.dtype, op.table.cols, op.scale, op.out);
  }
  void operator()(const RmsNormOp& op) {
    const auto* rows =
        op.gathers ? reinterpret_cast<const int32_t*>(machine_.uploads.DeviceAt(op.rows)) : nullptr;
    RmsNorm(For(op.out), {op.x, op.weight, op.eps, {}, op.out, op.add}, rows);
  }
  void operator()(const MatMulOp& op) {
    if (op.weight.dtype == DType::kFloat32 && op.x.dtype != DType::kFloat32) {
      return ExactProduct(For(op.out), op.x, op.weight, op.out);
    }
    if (op.weight.packed()) return LaunchPacked(op);
    machine_.products.Run(op.x, op.weight, op.out, op.accumulate);
  }
  void operator()(const AddBiasParams& params) { AddBias(For(params.x), params); }
  void operator()(const NormHeadsParams& params) { NormHeads(For(params.q), params); }
  void operator()(const RopeParams& params) { Rope(For(params.q), params); }
  void operator()(const AppendKvParams& params) { AppendKv(For(params.k, params.kv), params); }
  void operator()(const ThresholdOp& op) { PredictThresholds(ForThresholds(op), op.params); }
  void operator()(const SelectBlocksOp& op) {
    counts_ = CountsOf(op);
    SelectBlocks(ForHeadZ(op), op.params, counts_, op.relative);
  }
  void operator()(const ListBlocksOp& op) {
    counts_ = CountsOf(op);
    Context& context = For(op.params.q);
    TakeTable(op.params.table);
    ListBlocks(context, op.params,
               reinterpret_cast<const uint32_t*>(machine_.uploads.DeviceAt(op.heads)), counts_);
  }
  void operator()(const SelectPrefillOp& op) {
    const auto at = [&](int64_t offset) {
      return reinterpret_cast<int32_t*>(machine_.results.DeviceAt(offset));
    };
    SelectPrefillBlocks(ForHeadZ(op), op.params, {at(op.tokens_attended), at(op.tokens_read)},
                        op.relative);
  }
  void operator()(const DecodeAttentionOp& op) {
    Context& context = For(op.params.q, op.params.kv);
    // In a layer with a window nothing was counted for it.
    if (op.params.window > 0) counts_ = {};
    if (op.confirms) ConfirmReads(context, op.params, counts_);
    DecodeAttention(context, op.params, counts_, ListsOf(op, /*all=*/false));
  }
  void operator()(const PrefillAttentionOp& op) {
    PrefillAttention(For(op.params.q, op.params.kv), op.params);
  }
  void operator()(const CalibrationOp& op) {
    CollectCalibration(For(op.params.q, op.params.kv), op.params);
  }
  void operator()(const RecallOp& op) {
    const auto heads = static_cast<size_t>(op.params.num_query_heads);
    auto* above = reinterpret_cast<int64_t*>(machine_.results.DeviceAt(op.above));
    machine_.device.Check(
        cudaMemsetAsync(above, 0, 2 * heads * sizeof(int64_t), machine_.device.stream()), "recall");
    CountRecall(For(op.params.q, op.params.kv), {op.params, nullptr, nullptr}, above,
                above + heads);
  }
  void operator()(const ShadowOp& op) {
    MeasureShadow(For(op.params.q, op.params.kv), op.params, op.rows,
                  reinterpret_cast<float*>(machine_.results.DeviceAt(op.mass)),
                  reinterpret_cast<float*>(machine_.results.DeviceAt(op.error)));
  }
  void operator()(const SwiGluParams& params) { SwiGlu(For(params.out), params); }
  void operator()(const RouteRowsOp& op) {
    RouteRows(For(op.params.logits), op.params, CountsOf(op));
  }
  void operator()(const ExpertProduct& op) { MultiplyExperts(context_, op); }
  void operator()(const AddExpertsParams& params) { AddExperts(For(params.out), params); }
  void operator()(const SampleOp& op) {
    Sample(context_, op.logits, machine_.uploads.DeviceAt(op.rows), op.num_rows,
           machine_.results.DeviceAt(op.results));
  }

 private:
  // Op `i` if it is of type T, else null.
  template <typename T>
  static const T* OpAt(std::span<const Op> ops, size_t i) {
    return i < ops.size() ? std::get_if<T>(&ops[i]) : nullptr;
  }

  // Launches the ops as one kernel. Null `norms`: heads are not normed. Null `rope`: q and k do not
  // turn. Null `thresholds`: nobody asks for any. Returns false, and launches nothing, if there is
  // nothing to append or no kernel does them together.
  bool LaunchTogether(const NormHeadsParams* norms, const RopeParams* rope,
                      const AppendKvParams* append, const ThresholdOp* thresholds) {
    if (!shape_.few_rows || append == nullptr) return false;
    Context& context = thresholds != nullptr ? ForThresholds(*thresholds) : For(append->k);
    TakeTable(append->kv.table);
    return AppendDecodeRows(context, norms, rope, *append,
                            thresholds != nullptr ? &thresholds->params : nullptr,
                            shape_.single_rows ? nullptr : StepBundles(), shape_.bundles.count);
  }

  // Where all rows read everything, attention does without lists. Returns false, and launches
  // nothing, if an op is missing or rows select.
  bool LaunchTogether(const SelectBlocksOp* select, const DecodeAttentionOp* attention) {
    if (select == nullptr || attention == nullptr || !select->reads_all ||
        attention->params.window > 0 || select->params.selection != attention->params.selection ||
        !AttendsOnTensorCores(machine_.device, attention->params)) {
      return false;
    }
    counts_ = CountsOf(*select);
    DecodeAttention(For(attention->params.q, attention->params.kv), attention->params, counts_,
                    ListsOf(*attention, /*all=*/true));
    return true;
  }

  const RowBundle* StepBundles() const {
    return reinterpret_cast<const RowBundle*>(machine_.uploads.DeviceAt(0) + layout_.bundles());
  }
  DecodeLists ListsOf(const DecodeAttentionOp& op, bool all) const {
    return {.all = all,
            .even = op.even,
            .single_rows = shape_.single_rows,
            .bundles = StepBundles(),
            .num_bundles = shape_.bundles.count,
            .bundle_rows = shape_.bundles.rows};
  }

  // Launches a product of few rows with the ops around it, or several that follow one another.
  // Returns how many ops these are; 0, and launches nothing, if the ops do not begin so or no
  // kernel does them.
  size_t LaunchProduct(std::span<const Op> ops) {
    const std::vector<FusedProduct> chain = FuseChain(ops);
    if (chain.empty()) return 0;
    std::vector<RowProduct> products;
    for (const FusedProduct& fused : chain) products.push_back(Resolved(fused));
    size_t count = RunProductChain(context_, products);
    if (count == 0) count = RunRowProduct(context_, products.front()) ? 1 : 0;
    size_t launched = 0;
    for (size_t i = 0; i < count; ++i) launched += chain[i].num_ops;
    return launched;
  }
  // The product, with the rows that its norm gathers.
  RowProduct Resolved(const FusedProduct& fused) const {
    RowProduct product = fused.product;
    if (fused.gathers) {
      product.norm.rows =
          reinterpret_cast<const int32_t*>(machine_.uploads.DeviceAt(*fused.gathers));
    }
    return product;
  }

  // Launches a product of experts with the ops around it. Returns as LaunchProduct does.
  size_t LaunchExperts(std::span<const Op> ops) {
    const RouteRowsOp* routed = std::exchange(routed_, nullptr);
    if (OpAt<SwiGluParams>(ops, 0) == nullptr && OpAt<ExpertProduct>(ops, 0) == nullptr) {
      old_choice_.reset();
    }
    std::optional<FusedExperts> fused = FuseExperts(ops);
    if (!fused) return 0;
    ExpertProduct& product = fused->product;
    if (fused->route != nullptr) {
      const RouteRowsParams& route = fused->route->params;
      const bool is_one =
          fused->sum == nullptr &&
          RouteAndMultiply(For(route.logits), route, CountsOf(*fused->route), product);
      if (!is_one) return 0;
      routed_ = fused->route;
      return fused->num_ops;
    }
    // A second product of a choice begins when the kernel in front of the first one has ended.
    product.choice_is_old = old_choice_ == product.choice;
    old_choice_ = product.choice;
    const bool is_routed = routed != nullptr && routed->params.choice == product.choice;
    if (fused->sum != nullptr) {
      if (MultiplyAndAdd(For(fused->sum->out), is_routed ? &routed->params : nullptr, product,
                         *fused->sum)) {
        return fused->num_ops;
      }
      --fused->num_ops;
    }
    MultiplyExperts(context_, product);
    return fused->num_ops;
  }

  int32_t* CountsOf(const RouteRowsOp& op) const {
    if (op.counts < 0) return nullptr;
    return reinterpret_cast<int32_t*>(machine_.results.DeviceAt(op.counts));
  }
  void LaunchPacked(const MatMulOp& op) {
    RowProduct product;
    product.x = op.x;
    product.weight = op.weight;
    product.out = op.out;
    product.accumulate = op.accumulate;
    if (RunRowProduct(context_, product)) return;
    MultiplyUnpacked(context_, machine_.products, op.x, op.weight, op.out, op.accumulate);
  }

  // Of SelectBlocksOp and ListBlocksOp.
  template <typename T>
  DeviceCounts CountsOf(const T& op) const {
    const auto at = [&](int64_t offset) {
      return reinterpret_cast<int32_t*>(machine_.results.DeviceAt(offset));
    };
    return {at(op.tokens_attended), at(op.tokens_read),
            op.values_read < 0 ? nullptr : at(op.values_read)};
  }

  Context& ForThresholds(const ThresholdOp& op) {
    Context& context = For(op.params.q);
    context.step.frozen = reinterpret_cast<const float*>(machine_.uploads.DeviceAt(op.frozen));
    return context;
  }
  // Of SelectBlocksOp and SelectPrefillOp.
  template <typename T>
  Context& ForHeadZ(const T& op) {
    Context& context = For(op.params.q, op.params.kv);
    context.step.head_z = op.head_z != 0
                              ? reinterpret_cast<const float*>(machine_.uploads.DeviceAt(op.head_z))
                              : nullptr;
    return context;
  }
  // The context of an op over the rows of `tensor`: all padded rows, or fewer if the caller's
  // tensors have no room for padding.
  Context& For(const TensorView& tensor) {
    context_.step.num_rows =
        static_cast<int32_t>(std::min<int64_t>(tensor.rows, shape_.padded_rows));
    TakeTable(0);
    return context_;
  }
  // Likewise, of an op that looks up blocks of the cache.
  Context& For(const TensorView& tensor, const KvLayerView& kv) {
    Context& context = For(tensor);
    TakeTable(kv.table);
    return context;
  }
  // Makes rows and sequences those of a block table.
  void TakeTable(int32_t table) {
    const StepView there = layout_.View(machine_.uploads.DeviceAt(0), table);
    context_.step.rows = there.rows;
    context_.step.sequences = there.sequences;
    const StepView here = layout_.View(machine_.uploads.HostAt(0), table);
    context_.sequences = {here.sequences, static_cast<size_t>(here.counts->num_sequences)};
  }

  const Machine& machine_;
  StepShape shape_;
  StepLayout layout_;
  Context context_;
  DeviceCounts counts_;  // of the layer at hand
  // The choice of the product that was launched last, if nothing but SwiGlu came since.
  std::optional<ExpertChoice> old_choice_;
  const RouteRowsOp* routed_ = nullptr;  // of the kernel that was launched last
};

}  // namespace

void Program::Launch(const Machine& machine) const {
  Launcher launcher(machine, shape_);
  for (std::span<const Op> left = ops_; !left.empty() && machine.device.status().ok();) {
    left = left.subspan(launcher.LaunchFront(left));
  }
}

// Compares backwards, since two programs of one size mostly differ in their last ops.
bool Program::operator==(const Program& other) const {
  return shape_ == other.shape_ &&
         std::equal(ops_.rbegin(), ops_.rend(), other.ops_.rbegin(), other.ops_.rend());
}

bool Program::BeginsAs(const Program& other, size_t from) const {
  return shape_ == other.shape_ && size() <= other.size() &&
         std::equal(ops_.begin() + static_cast<std::ptrdiff_t>(from), ops_.end(),
                    other.ops_.begin() + static_cast<std::ptrdiff_t>(from));
}

void GraphCache::Follow(const Program& program) {
  if (program.size() == 1) followed_ = entries_.begin();
  size_t equal = program.size() - 1;  // the last index of the entry that was followed so far
  while (followed_ != entries_.end() && !program.BeginsAs(followed_->program, equal)) {
    ++followed_;
    equal = 0;
  }
}

void GraphCache::Run(const Program& program, int64_t generation, absl::FunctionRef<void()> launch) {
  if (generation != generation_) Clear();
  generation_ = generation;
  auto found = followed_;
  if (found != entries_.end() && found->program.size() != program.size()) {
    found = std::ranges::find(entries_, program, &Entry::program);
  }
  if (found == entries_.end()) {
    if (entries_.size() == kMaxGraphs) {
      if (entries_.back().graph != nullptr) cudaGraphExecDestroy(entries_.back().graph);
      entries_.pop_back();
    }
    entries_.push_front({program});
    launch();
    return;
  }
  entries_.splice(entries_.begin(), entries_, found);
  Entry& entry = entries_.front();
  if (entry.graph == nullptr) Capture(entry, launch);
  if (entry.graph == nullptr) {  // no memory for a graph: the step runs without
    launch();
    return;
  }
  device_.Check(cudaGraphLaunch(entry.graph, device_.stream()), "launch of a graph");
}

void GraphCache::Capture(Entry& entry, absl::FunctionRef<void()> launch) {
  const cudaError_t begun =
      cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal);
  device_.Check(begun, "capture of a graph");
  if (begun != cudaSuccess) return;
  launch();
  cudaGraph_t graph = nullptr;
  device_.Check(cudaStreamEndCapture(device_.stream(), &graph), "capture of a graph");
  if (graph == nullptr) return;
  const cudaError_t made = cudaGraphInstantiate(&entry.graph, graph, 0);
  if (made == cudaErrorMemoryAllocation) {
    entry.graph = nullptr;
    cudaGetLastError();
  } else {
    device_.Check(made, "instantiation of a graph");
  }
  device_.Check(cudaGraphDestroy(graph), "capture of a graph");
}

void GraphCache::Clear() {
  device_.MakeCurrent();
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  followed_ = entries_.end();
}

}  // namespace eta::cuda
