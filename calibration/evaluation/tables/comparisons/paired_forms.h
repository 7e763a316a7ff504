// Two forms of one model, such as its weights in 16 bits and in 4, on the same rows of text.
//
// Both run step by step, so that the logits of one step of each are all that is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/runtime/read_meter.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/request/attention_sums.h"

namespace eta {

// Of one of the two, under one way of attending.
struct FormRows {
  std::vector<float> losses;  // negative log-probability of every scored token, in text order, nats
  AttentionSums sums;         // of the scored rows; none under full attention

  double union_density() const { return sums.decode_rows > 0 ? sums.union_density() : 1.0; }
};

// Under one way of attending, row by row.
struct PairedRows {
  FormRows model;
  FormRows form;
  std::vector<float> divergences;  // KL(model || form) of the next token, nats
  std::vector<float> agreements;   // 1 where the most likely token is the same, else 0
};

class PairedForms {
 public:
  // Both attend in each of `ways`. REQUIRES: the runners are of models of one shape and vocabulary,
  // on caches of the ways' geometry; their longest steps are equal. All that is given must outlive
  // this.
  PairedForms(SequenceRunner& model, SequenceRunner& form, std::span<const EvaluatedAttention> ways,
              std::span<const int32_t> special_ids);

  // Runs a window, [rows + 1]: the first `prefill` rows as a prompt that is not scored, the others
  // as decode rows. Under full attention they are prefill rows, which give the same result faster.
  // Errors of SequenceRunner::Run. REQUIRES: prefill < rows.
  absl::Status Window(std::span<const int32_t> window, size_t prefill);

  const std::vector<PairedRows>& rows() const { return rows_; }  // as the ways

 private:
  struct Side {
    Side(SequenceRunner& its_runner, std::span<const EvaluatedAttention> ways);

    SequenceRunner& runner;
    std::vector<ReadMeter> meters;  // as the ways
    std::vector<float> logprobs;    // [step]
    std::vector<float> logits;      // [step, V]
  };

  absl::Status Prompt(Side& side, size_t way, std::span<const int32_t> window, size_t prefill);
  absl::Status Step(Side& side, size_t way, std::span<const int32_t> window, size_t begin,
                    size_t count, FormRows& rows);
  void Compare(size_t count, PairedRows& rows) const;
  SequenceSettings Settings(const Side& side, size_t way, std::span<const int32_t> window) const;

  std::span<const EvaluatedAttention> ways_;
  std::span<const int32_t> special_ids_;
  Side model_;
  Side form_;
  std::vector<PairedRows> rows_;
  std::vector<int32_t> all_rows_;  // 0 .. step - 1
};

}  // namespace eta
