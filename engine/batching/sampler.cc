#include "engine/batching/sampler.h"

#include <limits>
#include <utility>

#include "engine/base/random.h"

namespace eta {

Sampler::Sampler(const SamplingOptions& options, const OutputOptions& output, int32_t min_tokens,
                 const std::vector<int32_t>& end_ids, uint64_t seed,
                 std::span<const int32_t> prompt)
    : options_(options),
      num_logprobs_(output.logprobs.value_or(-1)),
      min_tokens_(min_tokens),
      seed_(seed),
      penalised_(options.repetition_penalty != 1.0f || options.presence_penalty != 0.0f ||
                 options.frequency_penalty != 0.0f),
      bias_without_end_(options.bias),
      top_(static_cast<size_t>(output.logprobs.value_or(0))) {
  for (const int32_t id : end_ids) {
    bias_without_end_.push_back({id, -std::numeric_limits<float>::infinity()});
  }
  if (penalised_) {
    for (const int32_t token : prompt) Count(token, 1, 0);
  }
}

SampleRow Sampler::Draw(int32_t logits_row, int32_t index) {
  SampleRow row;
  row.logits_row = logits_row;
  row.temperature = options_.temperature;
  row.top_k = options_.top_k;
  row.top_p = options_.top_p;
  row.min_p = options_.min_p;
  row.repetition_penalty = options_.repetition_penalty;
  row.presence_penalty = options_.presence_penalty;
  row.frequency_penalty = options_.frequency_penalty;
  row.uniform = UniformDraw(seed_, static_cast<uint64_t>(index));
  row.counts = counts_;
  row.bias = index < min_tokens_ ? bias_without_end_ : options_.bias;
  row.num_logprobs = num_logprobs_;
  row.top = top_;
  return row;
}

SampleRow Sampler::Force(int32_t logits_row, int32_t token, std::span<TokenLogprob> top) const {
  SampleRow row;
  row.logits_row = logits_row;
  row.forced = token;
  row.num_logprobs = static_cast<int32_t>(top.size());
  row.top = top;
  return row;
}

void Sampler::Append(int32_t token) {
  if (penalised_) Count(token, 0, 1);
}

void Sampler::Count(int32_t token, int32_t prompt, int32_t output) {
  const auto [found, inserted] = count_of_.emplace(token, counts_.size());
  if (inserted) counts_.push_back({token, 0, 0});
  counts_[found->second].prompt += prompt;
  counts_[found->second].output += output;
}

}  // namespace eta
