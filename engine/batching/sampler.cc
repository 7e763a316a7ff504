#include "engine/batching/sampler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/error.h"
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

SampleRow Sampler::Draw(int32_t logits_row, int32_t index, std::span<const int32_t> drafts) {
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
  if (drafts.empty()) return row;
  if (ahead_.size() < drafts.size()) ahead_.resize(drafts.size());
  Ahead& ahead = ahead_[drafts.size() - 1];
  if (penalised_) CountAhead(drafts, ahead.counts);
  ahead.top.resize(top_.size());
  row.counts = ahead.counts;
  row.top = ahead.top;
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

void Sampler::CountAhead(std::span<const int32_t> drafts, std::vector<TokenCount>& counts) const {
  counts = counts_;
  for (const int32_t token : drafts) {
    const auto found = count_of_.find(token);
    auto count = counts.begin() +
                 static_cast<ptrdiff_t>(found != count_of_.end() ? found->second : counts_.size());
    if (found == count_of_.end()) {
      count = std::find_if(count, counts.end(), [&](const auto& of) { return of.id == token; });
      if (count == counts.end()) count = counts.insert(count, {token, 0, 0});
    }
    ++count->output;
  }
}

absl::Status NonFiniteLogits() {
  return MakeError(absl::StatusCode::kInternal,
                   "the model's logits leave no token to draw for this request: they are NaN or "
                   "infinite",
                   {.reason = "NONFINITE_LOGITS"});
}

absl::Status WhyUndrawn(const SampleRow& row, const Request& request) {
  if (!row.barred) return row.finite ? absl::OkStatus() : NonFiniteLogits();
  // Mask, bias and penalties leave no token.
  if (request.format == nullptr) {
    return InvalidField("sampling.logit_bias", "leaves no token to draw");
  }
  if (!request.sampling.bias.empty()) {
    return InvalidField("sampling.logit_bias",
                        "leaves no token to draw of those that format allows");
  }
  return UnsupportedByModel("format", "the model gives no weight to any token that can come next");
}

}  // namespace eta
