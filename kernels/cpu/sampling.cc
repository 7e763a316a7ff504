// Sample draws one token for each row from its logits [V]: mask, bias, penalties, temperature,
// top_k, top_p and min_p apply in this order, then the draw (SampleRow in
// kernels/params/sampling.h).
//
// It scans the vocabulary in vectors; probabilities are double. Nothing sorts the whole vocabulary:
// likely tokens are collected first, and the prefix that holds a wanted mass is selected, not
// sorted. The tokens that a mask allows are moved together, and all that follows sees them alone.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/cpu/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sampling.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// The code below is compiled once per target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#ifndef ETA_KERNELS_CPU_SAMPLING_ONCE
#define ETA_KERNELS_CPU_SAMPLING_ONCE
namespace eta::cpu {
namespace {

constexpr size_t kWordBits = 32;   // of a mask
constexpr size_t kMaskLanes = 16;  // the most that are taken from a word at once

}  // namespace
}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Largest element; NaN if any is NaN or +infinity.
float LargestOnTarget(const float* from, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  auto largest = hn::Set(d, -kInfinity);
  auto below = hn::Eq(largest, largest);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(d, from + i);
    largest = hn::Max(largest, v);
    below = hn::And(below, hn::Lt(v, hn::Set(d, kInfinity)));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  bool drawable = hn::AllTrue(d, below);
  for (; i < count; ++i) {
    drawable = drawable && from[i] < kInfinity;
    result = std::max(result, from[i]);
  }
  return drawable ? result : std::numeric_limits<float>::quiet_NaN();
}

// Sum of exp((from[i] - best) / temperature).
double SumExpOnTarget(const float* from, size_t count, double best, double temperature) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const size_t lanes = hn::Lanes(dd);
  const auto shift = hn::Set(dd, best);
  const auto divisor = hn::Set(dd, temperature);
  auto sum = hn::Zero(dd);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto logit = hn::PromoteTo(dd, hn::LoadU(df, from + i));
    sum = hn::Add(sum, hn::Exp(dd, hn::Div(hn::Sub(logit, shift), divisor)));
  }
  double total = hn::GetLane(hn::SumOfLanes(dd, sum));
  for (; i < count; ++i) total += std::exp((from[i] - best) / temperature);
  return total;
}

// Writes the ids of the tokens that the mask allows, ascending, and their logits. Both have room
// for kMaskLanes more than these.
void AllowedOnTarget(const float* logits, size_t count, const uint32_t* mask, int32_t* ids,
                     float* kept) {
  const hn::CappedTag<float, kMaskLanes> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const uint32_t lane_bits = (1u << lanes) - 1;
  for (size_t begin = 0; begin < count; begin += kWordBits) {
    uint32_t word = mask[begin / kWordBits];
    size_t i = begin;
    const size_t end = std::min(count, begin + kWordBits);
    for (; word != 0 && i + lanes <= end; i += lanes, word >>= lanes) {
      const uint32_t bits = word & lane_bits;
      if (bits == 0) continue;
      const uint8_t bytes[8] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
      const auto allowed = hn::LoadMaskBits(d, bytes);
      const auto id = hn::Iota(di, static_cast<int32_t>(i));
      ids += hn::CompressStore(id, hn::RebindMask(di, allowed), di, ids);
      kept += hn::CompressStore(hn::LoadU(d, logits + i), allowed, d, kept);
    }
    for (; word != 0 && i < end; ++i, word >>= 1) {
      if ((word & 1) == 0) continue;
      *ids++ = static_cast<int32_t>(i);
      *kept++ = logits[i];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {
namespace {

HWY_EXPORT(LargestOnTarget);
HWY_EXPORT(SumExpOnTarget);
HWY_EXPORT(AllowedOnTarget);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Largest(std::span<const float> logits) {
  return HWY_DYNAMIC_DISPATCH(LargestOnTarget)(logits.data(), logits.size());
}

double SumExp(std::span<const float> logits, double best, double temperature) {
  return HWY_DYNAMIC_DISPATCH(SumExpOnTarget)(logits.data(), logits.size(), best, temperature);
}

// A token that may be drawn; `weight` is its probability up to a common factor.
struct Candidate {
  int32_t id;
  float logit;
  double weight;
};

bool RanksBefore(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

double TotalWeight(std::span<const Candidate> candidates) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// Moves the shortest ranked prefix for which reached(mass) holds to the front, with its
// lowest-ranked candidate last. Returns the prefix's length, or the number of candidates if no
// prefix reaches it. reached() must be monotonous in the mass.
template <class Reached>
size_t SelectPrefix(std::span<Candidate> candidates, const Reached& reached) {
  constexpr size_t kSortDirectly = 32;
  size_t begin = 0;
  size_t end = candidates.size();
  double mass = 0.0;  // mass of all candidates before `begin`
  while (end - begin > kSortDirectly) {
    const size_t middle = begin + (end - begin) / 2;
    const auto at = [&](size_t i) { return candidates.begin() + static_cast<ptrdiff_t>(i); };
    std::nth_element(at(begin), at(middle), at(end), RanksBefore);
    const double upper = mass + TotalWeight(candidates.subspan(begin, middle - begin));
    if (reached(upper)) {
      end = middle;
    } else {
      begin = middle;
      mass = upper;
    }
  }
  const std::span<Candidate> rest = candidates.subspan(begin, end - begin);
  std::sort(rest.begin(), rest.end(), RanksBefore);
  for (size_t i = 0; i < rest.size(); ++i) {
    mass += rest[i].weight;
    if (reached(mass)) return begin + i + 1;
  }
  return end;
}

// The tokens that a row may draw. They are numbered by their place, and their ids ascend with it.
struct Tokens {
  std::span<float> logits;
  std::span<const int32_t> ids;  // empty: places are ids

  // Null for a token that is not among them.
  float* Find(int32_t id) const {
    auto place = static_cast<size_t>(id);
    if (!ids.empty()) {
      const auto found = std::lower_bound(ids.begin(), ids.end(), id);
      if (found == ids.end() || *found != id) return nullptr;
      place = static_cast<size_t>(found - ids.begin());
    }
    return id >= 0 && place < logits.size() ? &logits[place] : nullptr;
  }
};

// Every token, in memory of this thread until its next call.
Tokens Every(std::span<const float> logits) {
  thread_local std::vector<float> copy;
  copy.assign(logits.begin(), logits.end());
  return {copy, {}};
}

// The tokens that the mask allows, in memory of this thread until its next call.
Tokens Allowed(std::span<const float> logits, std::span<const uint32_t> mask) {
  thread_local std::vector<float> kept;
  thread_local std::vector<int32_t> ids;
  size_t count = 0;
  const size_t whole = logits.size() / kWordBits;
  for (const uint32_t word : mask.first(whole)) count += static_cast<size_t>(std::popcount(word));
  if (const size_t rest = logits.size() % kWordBits; rest > 0) {
    count += static_cast<size_t>(std::popcount(mask[whole] & ((1u << rest) - 1)));
  }
  if (kept.size() < count + kMaskLanes) {
    kept.resize(count + kMaskLanes);
    ids.resize(count + kMaskLanes);
  }
  HWY_DYNAMIC_DISPATCH(AllowedOnTarget)
  (logits.data(), logits.size(), mask.data(), ids.data(), kept.data());
  return {std::span(kept).first(count), std::span(ids).first(count)};
}

// Applies bias, then repetition, presence and frequency penalty. It uses float32, so that equal
// logits stay equal in every backend. A logit that becomes infinite or NaN is forbidden: minus
// infinity.
void Adjust(const SampleRow& row, const Tokens& tokens) {
  for (const LogitBias& bias : row.bias) {
    if (float* const logit = tokens.Find(bias.id)) *logit += bias.bias;
  }
  for (const TokenCount& count : row.counts) {
    float* const found = tokens.Find(count.id);
    if (found == nullptr) continue;
    float& logit = *found;
    if (count.prompt > 0 || count.output > 0) {
      logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    if (count.output > 0) {
      logit -= row.presence_penalty;
      logit -= row.frequency_penalty * static_cast<float>(count.output);
    }
  }
  const auto forbid = [&](int32_t id) {
    float* const logit = tokens.Find(id);
    if (logit != nullptr && !std::isfinite(*logit)) *logit = -kInfinity;
  };
  for (const LogitBias& bias : row.bias) forbid(bias.id);
  for (const TokenCount& count : row.counts) forbid(count.id);
}

// The tokens that a draw may see, by their place, collected on demand. Tokens whose weight is not
// tiny come first.
class Draw {
 public:
  Draw(std::span<const float> logits, float best, const SampleRow& row)
      : logits_(logits), best_(best), row_(row) {
    Collect();
  }

  int32_t Run() {
    if (row_.top_k > 0) {
      KeepTopK(static_cast<size_t>(row_.top_k));
      total_ = TotalWeight(candidates_);
    } else {
      total_ = SumExp(logits_, best_, row_.temperature);
    }
    if (row_.top_p < 1.0f) {
      const double wanted = row_.top_p * total_;
      Keep([&](double mass) { return mass >= wanted; });
    }
    if (row_.min_p > 0.0f) KeepMinP();
    const double target = row_.uniform * total_;
    Keep([&](double mass) { return mass > target; });
    return candidates_.back().id;
  }

 private:
  static constexpr float kMostReach = 32.0f;  // beyond it every token is collected

  // Collects every token that has a weight and is at most `reach_` temperatures below the best.
  void Collect() {
    const bool all = reach_ > kMostReach;
    const float lowest =
        all ? -kInfinity
            : static_cast<float>(best_ - static_cast<double>(reach_) * row_.temperature);
    complete_ = all;
    candidates_.clear();
    for (size_t id = 0; id < logits_.size(); ++id) {
      if (!(logits_[id] >= lowest)) continue;
      const double weight = std::exp((logits_[id] - static_cast<double>(best_)) / row_.temperature);
      if (weight > 0.0) candidates_.push_back({static_cast<int32_t>(id), logits_[id], weight});
    }
  }

  // Collects further tokens until enough() holds or every token is there.
  template <class Enough>
  void CollectUntil(const Enough& enough) {
    while (!complete_ && !enough()) {
      reach_ *= 2.0f;
      Collect();
    }
  }

  void KeepTopK(size_t k) {
    CollectUntil([&] { return candidates_.size() >= k; });
    if (candidates_.size() > k) {
      std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(k),
                       candidates_.end(), RanksBefore);
      candidates_.resize(k);
    }
    complete_ = true;  // no other token counts from here on
  }

  template <class Reached>
  void Keep(const Reached& reached) {
    CollectUntil([&] { return reached(TotalWeight(candidates_)); });
    candidates_.resize(SelectPrefix(candidates_, reached));
    total_ = TotalWeight(candidates_);
    complete_ = true;
  }

  void KeepMinP() {
    CollectUntil([&] { return row_.min_p > std::exp(1.0f - reach_); });
    // The best candidate's weight is 1.
    std::erase_if(candidates_, [&](const Candidate& candidate) {
      return candidate.weight < 1.0 && candidate.weight < row_.min_p;
    });
    total_ = TotalWeight(candidates_);
    complete_ = true;
  }

  std::span<const float> logits_;
  float best_;
  const SampleRow& row_;
  std::vector<Candidate> candidates_;
  double total_ = 0.0;
  float reach_ = 4.0f;
  bool complete_ = false;  // candidates_ holds every token that still counts
};

// Fills in the most probable tokens, ties by lowest id.
void FillTop(std::span<const float> logits, double log_sum, std::span<TokenLogprob> top) {
  size_t filled = 0;
  std::vector<float> ranked(top.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    const bool full = filled == top.size();
    if (full && (top.empty() || !(logits[id] > ranked.back()))) continue;
    if (!full) ++filled;
    size_t at = filled - 1;
    for (; at > 0 && logits[id] > ranked[at - 1]; --at) {
      ranked[at] = ranked[at - 1];
      top[at] = top[at - 1];
    }
    ranked[at] = logits[id];
    top[at] = {static_cast<int32_t>(id), static_cast<float>(logits[id] - log_sum)};
  }
}

// The token of a row with drawable logits; -1 if every token is forbidden.
int32_t Choose(std::span<const float> raw, float largest, const SampleRow& row) {
  if (row.forced >= 0) return row.forced;
  std::span<const float> logits = raw;
  std::span<const int32_t> ids;
  const bool adjusts = !row.bias.empty() || !row.counts.empty();
  if (adjusts || !row.mask.empty()) {
    const Tokens tokens = row.mask.empty() ? Every(raw) : Allowed(raw, row.mask);
    if (tokens.logits.empty()) return -1;
    if (adjusts) Adjust(row, tokens);
    logits = tokens.logits;
    ids = tokens.ids;
    largest = Largest(logits);
  }
  if (largest == -kInfinity) return -1;
  const auto place =
      row.temperature > 0.0f
          ? Draw(logits, largest, row).Run()
          : static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
  return ids.empty() ? place : ids[static_cast<size_t>(place)];
}

void SampleOne(std::span<const float> logits, SampleRow& row) {
  const float largest = Largest(logits);
  row.finite = std::isfinite(largest);
  row.token = row.finite ? Choose(logits, largest, row) : -1;
  row.barred = row.finite && row.token < 0;
  row.finite = row.token >= 0;
  if (!row.finite || row.num_logprobs < 0) return;
  const double log_sum = largest + std::log(SumExp(logits, largest, 1.0));
  row.logprob = static_cast<float>(logits[static_cast<size_t>(row.token)] - log_sum);
  FillTop(logits, log_sum, row.top);
}

}  // namespace

void Sample(const Context& context, const SampleParams& params) {
  const auto cols = static_cast<size_t>(params.logits.cols);
  context.workers.Run(static_cast<int64_t>(params.rows.size()), [&](int64_t i, int) {
    SampleRow& row = params.rows[static_cast<size_t>(i)];
    SampleOne({params.logits.row(row.logits_row), cols}, row);
  });
}

}  // namespace eta::cpu
#endif  // HWY_ONCE
