// Makes the draws of one request's answer from its sampling options, one row at a time. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request/request.h"
#include "kernels/params/sampling.h"

namespace eta {

class Sampler {
 public:
  // `end_ids`: tokens that end the answer. They cannot be drawn before min_tokens.
  Sampler(const SamplingOptions& options, const OutputOptions& output, int32_t min_tokens,
          const std::vector<int32_t>& end_ids, uint64_t seed, std::span<const int32_t> prompt);

  // The draw of output token `index` from row `logits_row`. The row points into this sampler and
  // is valid until the next call.
  SampleRow Draw(int32_t logits_row, int32_t index);

  // No draw: the log-probability of a known token, one of the prompt.
  SampleRow Force(int32_t logits_row, int32_t token, std::span<TokenLogprob> top) const;

  // Tells that `token` was appended to the answer.
  void Append(int32_t token);

 private:
  void Count(int32_t token, int32_t prompt, int32_t output);

  SamplingOptions options_;
  int32_t num_logprobs_;
  int32_t min_tokens_;
  uint64_t seed_;
  bool penalised_;
  std::vector<TokenCount> counts_;
  std::unordered_map<int32_t, size_t> count_of_;
  std::vector<LogitBias> bias_without_end_;  // the request's bias, and minus infinity for end_ids
  std::vector<TokenLogprob> top_;
};

}  // namespace eta
