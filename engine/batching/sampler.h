// Makes the draws of one request's answer from its sampling options, one row at a time. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/request.h"
#include "kernels/params/sampling.h"

namespace eta {

class Sampler {
 public:
  // `end_ids`: tokens that end the answer. They cannot be drawn before min_tokens.
  Sampler(const SamplingOptions& options, const OutputOptions& output, int32_t min_tokens,
          const std::vector<int32_t>& end_ids, uint64_t seed, std::span<const int32_t> prompt);

  // The draw of output token `index` from row `logits_row`, where `drafts` come before it in the
  // answer that were not appended. The row points into this sampler and is valid until the next
  // call with as many drafts, or Append.
  SampleRow Draw(int32_t logits_row, int32_t index, std::span<const int32_t> drafts = {});

  // No draw: the log-probability of a known token, one of the prompt.
  SampleRow Force(int32_t logits_row, int32_t token, std::span<TokenLogprob> top) const;

  // Tells that `token` was appended to the answer.
  void Append(int32_t token);

 private:
  // What a row behind drafts points to.
  struct Ahead {
    std::vector<TokenCount> counts;
    std::vector<TokenLogprob> top;
  };

  void Count(int32_t token, int32_t prompt, int32_t output);
  void CountAhead(std::span<const int32_t> drafts, std::vector<TokenCount>& counts) const;

  SamplingOptions options_;
  int32_t num_logprobs_;
  int32_t min_tokens_;
  uint64_t seed_;
  bool penalised_;
  std::vector<TokenCount> counts_;
  std::unordered_map<int32_t, size_t> count_of_;
  std::vector<LogitBias> bias_without_end_;  // the request's bias, and minus infinity for end_ids
  std::vector<TokenLogprob> top_;
  std::vector<Ahead> ahead_;  // [i]: of a row behind i + 1 drafts
};

// Why no token was drawn from a row: INTERNAL (NONFINITE_LOGITS), or what its request asks for
// leaves none. OK: one was.
absl::Status WhyUndrawn(const SampleRow& row, const Request& request);
absl::Status NonFiniteLogits();

}  // namespace eta
