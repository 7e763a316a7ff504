// The ops of a step, recorded and then run together: launched one by one, or replayed as a CUDA
// graph if the same program has run before.
//
// A recorded op holds device addresses and sizes, and offsets into Uploads (its host inputs) and
// Results (its host outputs). Nothing in it changes from one decode step to the next one of the
// same size. So two equal programs are the same work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/host/device.h"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/host/step_plan.h"
#include "kernels/cuda/host/transfer.h"
#include "kernels/cuda/rows/matmul.h"
#include "kernels/params/calibration.h"
#include "kernels/params/layer.h"
#include "kernels/params/selection.h"
#include "kernels/tensor_view.h"

namespace eta::cuda {

struct EmbedOp {
  Weight table;
  TensorView out;
  float scale;
  bool operator==(const EmbedOp&) const = default;
};

struct RmsNormOp {
  TensorView x;
  const float* weight;
  float eps;
  bool gathers;
  int64_t rows;  // Uploads: int32 [out.rows], if it gathers rows
  TensorView out;
  bool add = false;
  bool operator==(const RmsNormOp&) const = default;
};

struct MatMulOp {
  TensorView x;
  Weight weight;
  TensorView out;
  bool accumulate;
  bool operator==(const MatMulOp&) const = default;
};

struct ThresholdOp {
  ThresholdParams params;  // layer 0: `frozen` holds this op's layer alone
  int64_t frozen;          // Uploads: float [F, HQ]
  bool operator==(const ThresholdOp&) const = default;
};

struct SelectBlocksOp {
  SelectBlocksParams params;  // without counts; layer 0: `head_z` holds this op's layer alone
  bool relative;              // a decode row has relative thresholds
  bool reads_all;             // every decode row reads all its blocks
  int64_t head_z;             // Uploads: float [F, HQ]; 0: no sequence has any
  int64_t tokens_attended;    // Results: int32 [R, HQ]
  int64_t tokens_read;        // Results: int32 [R, HKV]
  int64_t values_read;        // Results: likewise, or -1: no decode row has confirmed reads
  bool operator==(const SelectBlocksOp&) const = default;
};

struct ListBlocksOp {
  ListBlocksParams params;  // without heads and counts
  int64_t heads;            // Uploads: uint32 [R, HKV, capacity]
  int64_t tokens_attended;  // Results, as of SelectBlocksOp
  int64_t tokens_read;
  int64_t values_read;
  bool operator==(const ListBlocksOp&) const = default;
};

struct SelectPrefillOp {
  SelectPrefillParams params;  // without counts; layer 0: `head_z` holds this op's layer alone
  bool relative;               // a sequence of sparse prefill has relative thresholds
  int64_t head_z;              // Uploads, as of SelectBlocksOp
  int64_t tokens_attended;     // Results, as of SelectBlocksOp
  int64_t tokens_read;
  bool operator==(const SelectPrefillOp&) const = default;
};

struct DecodeAttentionOp {
  AttentionParams params;  // without values_read
  bool confirms;           // a decode row has confirmed reads
  bool even;               // as of DecodeLists
  bool operator==(const DecodeAttentionOp&) const = default;
};

struct PrefillAttentionOp {
  AttentionParams params;
  bool operator==(const PrefillAttentionOp&) const = default;
};

struct CalibrationOp {
  CalibrationParams params;
  bool operator==(const CalibrationOp&) const = default;
};

struct RecallOp {
  AttentionParams params;
  int64_t above;  // Results: int64 [2, HQ], above and above_admitted
  bool operator==(const RecallOp&) const = default;
};

struct ShadowOp {
  AttentionParams params;
  std::vector<int32_t> rows;
  int64_t mass;   // Results: float [rows.size(), HQ]
  int64_t error;  // Results: likewise
  bool operator==(const ShadowOp&) const = default;
};

struct RouteRowsOp {
  RouteRowsParams params;  // without rows_of_experts
  int64_t counts;          // Results: int32 [E], or -1: nobody asks
  bool operator==(const RouteRowsOp&) const = default;
};

struct SampleOp {
  TensorView logits;
  int32_t num_rows;  // padded
  int64_t rows;      // Uploads: the packed SampleRows
  int64_t results;   // Results
  bool operator==(const SampleOp&) const = default;
};

using Op = std::variant<EmbedOp, RmsNormOp, MatMulOp, AddBiasParams, NormHeadsParams, RopeParams,
                        AppendKvParams, ThresholdOp, SelectBlocksOp, ListBlocksOp, SelectPrefillOp,
                        DecodeAttentionOp, PrefillAttentionOp, RecallOp, ShadowOp, CalibrationOp,
                        SwiGluParams, RouteRowsOp, ExpertProduct, AddExpertsParams, SampleOp>;

// The parts of the device that launching needs.
struct Machine {
  Device& device;
  Scratch& scratch;
  MatMuls& products;
  const Uploads& uploads;
  const Results& results;
};

class Program {
 public:
  void Add(Op op) { ops_.push_back(std::move(op)); }
  size_t size() const { return ops_.size(); }
  bool empty() const { return ops_.empty(); }
  // Begins a new step.
  void Clear(const StepShape& shape) {
    shape_ = shape;
    ops_.clear();
  }

  // Puts all ops on the device's stream. Consecutive ops that one kernel does are launched
  // together.
  void Launch(const Machine& machine) const;

  bool operator==(const Program& other) const;
  // Whether the ops from index `from` on equal the ops of `other` at the same indices.
  bool BeginsAs(const Program& other, size_t from) const;

 private:
  StepShape shape_;
  std::vector<Op> ops_;
};

// Graphs of the programs that ran last. The first run of a program is plain, so that scratch memory
// grows and products are chosen. The second run captures it as a graph, and later runs replay that.
class GraphCache {
 public:
  explicit GraphCache(Device& device) : device_(device) {}
  ~GraphCache() { Clear(); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Looks `program` up after each recorded op, so that Run need not.
  void Follow(const Program& program);

  // Runs `program`; `launch` puts its ops on the device's stream. If `generation` is not that of
  // the last call, memory that ops use has moved, and all graphs are void.
  void Run(const Program& program, int64_t generation, absl::FunctionRef<void()> launch);

 private:
  struct Entry {
    Program program;
    cudaGraphExec_t graph = nullptr;
  };

  void Capture(Entry& entry, absl::FunctionRef<void()> launch);
  void Clear();

  Device& device_;
  std::list<Entry> entries_;  // most recently used first
  // The first entry whose ops begin like those of the program that is being recorded.
  std::list<Entry>::iterator followed_ = entries_.end();
  int64_t generation_ = 0;
};

}  // namespace eta::cuda
