// The parameters of Sample, which also bring back what was drawn. All but the logits is host
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/tensor_view.h"

namespace eta {

// Token `id` occurred `prompt` times in the prompt and `output` times in the answer so far.
struct TokenCount {
  int32_t id;
  int32_t prompt;
  int32_t output;
};

struct LogitBias {
  int32_t id;
  float bias;  // -infinity forbids the token
};

struct TokenLogprob {
  int32_t id;
  float logprob;
};

// Words of a mask over V tokens: bit i % 32 of word i / 32 is token i's.
constexpr size_t MaskWords(int64_t vocab_size) {
  return static_cast<size_t>((vocab_size + 31) / 32);
}

// One draw. The log-probabilities are those of the model's logits, before any change. Then mask,
// bias, repetition, presence and frequency penalty, temperature, top_k, top_p and min_p apply, in
// this order (eta-semantics.md, "Drawing a token"). `uniform` picks from the remaining tokens in
// descending order of probability (ties: lowest id).
struct SampleRow {
  int32_t logits_row = 0;
  float temperature = 1.0f;  // 0: greedy (ties: lowest id), after bias and penalties
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // divides positive logits, multiplies negative ones
  float presence_penalty = 0.0f;    // counts the answer only, as does frequency
  float frequency_penalty = 0.0f;
  double uniform = 0.0;  // in [0, 1)
  std::span<const TokenCount> counts{};
  std::span<const LogitBias> bias{};
  std::span<const uint32_t> mask{};  // [MaskWords(V)], bit set: may be drawn; empty: every one
  int32_t forced = -1;               // a known token: only its log-probabilities are computed
  int32_t num_logprobs = -1;         // alternatives wanted; 0: the token's own only; -1: none
  // The op fills in:
  int32_t token = -1;
  // False: no token was drawn, since a logit is NaN or +infinity, or every one is -infinity; or,
  // `barred`, since mask, bias and penalties leave none.
  bool finite = true;
  bool barred = false;
  float logprob = 0.0f;
  std::span<TokenLogprob> top{};  // [num_logprobs], descending
};

struct SampleParams {
  TensorView logits;          // [rows, V]; not changed
  std::span<SampleRow> rows;  // host
};

}  // namespace eta
