// Sample draws one token for each row from its logits [V]: mask, bias, penalties, temperature,
// top_k, top_p and min_p apply in this order, then the draw (SampleRow in
// kernels/params/sampling.h).

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// A token that may be drawn; `weight` is its probability up to a common factor.
struct Candidate {
  int32_t id;
  float logit;
  double weight;
};

bool Drawable(std::span<const float> logits) {
  return std::none_of(logits.begin(), logits.end(),
                      [](float l) {
                        return std::isnan(l) || l == std::numeric_limits<float>::infinity();
                      }) &&
         std::any_of(logits.begin(), logits.end(), [](float l) { return std::isfinite(l); });
}

double LogSumExp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float l : logits) sum += std::exp(l - max);
  return max + std::log(sum);
}

// Applies mask and bias, then repetition, presence and frequency penalty. It uses float32, so that
// equal logits stay equal in every backend.
std::vector<float> Adjust(std::span<const float> logits, const SampleRow& row) {
  std::vector<float> adjusted(logits.begin(), logits.end());
  for (size_t id = 0; id < adjusted.size() && !row.mask.empty(); ++id) {
    if ((row.mask[id / 32] >> (id % 32) & 1) == 0) {
      adjusted[id] = -std::numeric_limits<float>::infinity();
    }
  }
  const auto in_range = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < adjusted.size();
  };
  for (const LogitBias& bias : row.bias) {
    if (in_range(bias.id)) adjusted[static_cast<size_t>(bias.id)] += bias.bias;
  }
  for (const TokenCount& count : row.counts) {
    if (!in_range(count.id)) continue;
    float& logit = adjusted[static_cast<size_t>(count.id)];
    if (count.prompt > 0 || count.output > 0) {
      logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    if (count.output > 0) {
      logit -= row.presence_penalty;
      logit -= row.frequency_penalty * static_cast<float>(count.output);
    }
  }
  return adjusted;
}

// Tokens that are not forbidden, most probable first, ties by lowest id.
std::vector<Candidate> Ranked(std::span<const float> logits) {
  std::vector<Candidate> candidates;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isfinite(logits[id])) {
      candidates.push_back({static_cast<int32_t>(id), logits[id], 0.0});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  return candidates;
}

double TotalWeight(const std::vector<Candidate>& candidates) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// Applies temperature, top_k, top_p and min_p. The ranked candidates are cut and stay ranked.
void Truncate(std::vector<Candidate>& candidates, const SampleRow& row) {
  const double best = candidates.front().logit;
  for (Candidate& candidate : candidates) {
    candidate.weight = std::exp((candidate.logit - best) / row.temperature);
  }
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < candidates.size()) {
    candidates.resize(static_cast<size_t>(row.top_k));
  }
  if (row.top_p < 1.0f) {  // the shortest prefix that holds the wanted mass, at least one token
    const double wanted = row.top_p * TotalWeight(candidates);
    size_t kept = 0;
    for (double mass = 0.0; kept < candidates.size() && (kept == 0 || mass < wanted); ++kept) {
      mass += candidates[kept].weight;
    }
    candidates.resize(kept);
  }
  // The best candidate's weight is 1.
  std::erase_if(candidates,
                [&](const Candidate& candidate) { return candidate.weight < row.min_p; });
}

int32_t Draw(const std::vector<Candidate>& candidates, double uniform) {
  const double target = uniform * TotalWeight(candidates);
  double mass = 0.0;
  int32_t last = candidates.front().id;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0.0) break;  // underflow: all that follow are 0 too
    last = candidate.id;
    mass += candidate.weight;
    if (mass > target) break;
  }
  return last;
}

void SampleOne(std::span<const float> logits, SampleRow& row) {
  row.token = -1;
  row.barred = false;
  row.finite = Drawable(logits);
  if (!row.finite) return;

  if (row.forced >= 0) {
    row.token = row.forced;
  } else {
    std::vector<Candidate> candidates = Ranked(Adjust(logits, row));
    row.barred = candidates.empty();
    row.finite = !row.barred;
    if (row.barred) return;
    if (row.temperature > 0.0f) Truncate(candidates, row);
    row.token = row.temperature > 0.0f ? Draw(candidates, row.uniform) : candidates.front().id;
  }

  if (row.num_logprobs < 0) return;
  const double log_sum = LogSumExp(logits);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(logits[static_cast<size_t>(id)] - log_sum);
  };
  row.logprob = logprob(row.token);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < std::min(row.top.size(), ids.size()); ++i) {
    row.top[i] = {ids[i], logprob(ids[i])};
  }
}

}  // namespace

void Sample(const SampleParams& params) {
  for (SampleRow& row : params.rows) {
    SampleOne({params.logits.row(row.logits_row), static_cast<size_t>(params.logits.cols)}, row);
  }
}

}  // namespace eta::reference
