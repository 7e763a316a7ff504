// Forces a text through a model token by token: a prompt with full attention, then one decode step
// per token with the case's attention. Records logits and counts of every step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/runtime/runner.h"

namespace eta {

struct ScoreCase {
  std::vector<int32_t> tokens;  // [n]
  int32_t prompt_tokens = 0;    // P
  int32_t block_size = 0;
  int32_t sub_block = 0;
  float beta = 0.0f;                   // must equal the checkpoint's
  bool dynamic = false;                // needs the predictor
  AttentionOptions attention;          // of the decode rows
  std::vector<float> thresholds = {};  // [L, HQ] frozen, for prompt and decode rows; or empty
  bool temper_special = false;         // keys of control tokens weigh exp(0)

  // Row 0 is the last position of the prompt. Row r is the step that feeds token P + r - 1. The
  // last token is only predicted, not fed, unless nothing follows the prompt.
  int32_t rows() const;
};

struct ScoreResult {
  int64_t rows = 0;
  std::vector<float> logits;             // [rows, V]
  std::vector<float> thresholds;         // [L, HQ, rows], before the offset
  std::vector<int32_t> tokens_attended;  // [L, HQ, rows]; row 0 counts the whole prompt
  std::vector<int32_t> tokens_read;      // [L, HKV, rows]; likewise
};

// Reads tensors tokens and, in mode "frozen", profile [L, HQ] of a safetensors file. Its metadata
// has prompt_tokens, mode (full, eta, floor, frozen, relative), the parameters of attention.
// InvalidArgument, naming the field and its limit, for anything missing or out of range.
absl::StatusOr<ScoreCase> ReadScoreCase(const std::string& path);

// The geometry that the runner's cache must have for a case.
KvGeometry CaseGeometry(const ScoreCase& score_case, const ModelConfig& config, DType dtype,
                        std::optional<DType> index_dtype = {});

// InvalidArgument for a case that does not fit the model. `special_ids`, ascending, are those
// that may be tempered.
absl::StatusOr<ScoreResult> RunScore(const ScoreCase& score_case, SequenceRunner& runner,
                                     std::span<const int32_t> special_ids = {});

absl::Status WriteScoreResult(const ScoreResult& result, const ModelConfig& config,
                              const std::string& path);

}  // namespace eta
