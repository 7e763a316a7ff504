// Where results go on the host after a program has run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cuda/host/step_plan.h"
#include "kernels/cuda/host/transfer.h"
#include "kernels/params/sampling.h"
#include "kernels/params/selection.h"

namespace eta::cuda {

// The rows of a step that have counts: decode rows and those of sparse prefill.
struct CountedRows {
  std::vector<PackedStep::Rows> decode;
  std::vector<PackedStep::Rows> sparse_prefill;
};

// Each target takes its regions of the results; `rows` are those of the step.

struct CountsTarget {
  RowKind kind;             // of the rows that it takes
  int64_t tokens_attended;  // Results
  int64_t tokens_read;
  int64_t values_read;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  AttentionCounts counts;

  void Take(const Results& results, const CountedRows& rows) const;
};

struct RecallTarget {
  int64_t above;  // Results
  int32_t num_query_heads;
  int64_t* above_host;
  int64_t* above_admitted_host;

  void Take(const Results& results, const CountedRows& rows) const;
};

struct ShadowTarget {
  int64_t mass;  // Results
  int64_t error;
  size_t count;
  float* mass_host;
  float* error_host;

  void Take(const Results& results, const CountedRows& rows) const;
};

struct ExpertsTarget {
  int64_t counts;  // Results
  int32_t num_experts;
  int32_t* rows_of_experts;

  void Take(const Results& results, const CountedRows& rows) const;
};

struct SampleTarget {
  int64_t results;  // Results
  int32_t num_rows;
  std::span<SampleRow> rows;

  void Take(const Results& results, const CountedRows& rows) const;
};

using Target = std::variant<CountsTarget, RecallTarget, ShadowTarget, ExpertsTarget, SampleTarget>;

}  // namespace eta::cuda
