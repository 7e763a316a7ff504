#include "engine/batching/drafts/draft_length.h"

#include <algorithm>

namespace eta {
namespace {

constexpr double kLeastGain = 1.02;  // below that, what a draft costs beside its rows is not paid

// How much faster the batch gets its tokens with k drafted ones for one of its sequences.
double Gain(double acceptance, int32_t k, int32_t running, double row_cost) {
  double tokens = running;
  double power = 1.0;
  for (int32_t i = 0; i < k; ++i) tokens += power *= acceptance;
  return tokens / running / (1.0 + k * row_cost);
}

int32_t Best(double acceptance, int32_t running, double row_cost) {
  const double few = Gain(acceptance, DraftLength::kShort, running, row_cost);
  const double many = Gain(acceptance, DraftLength::kLong, running, row_cost);
  if (std::max(few, many) < kLeastGain) return 0;
  return many > few ? DraftLength::kLong : DraftLength::kShort;
}

}  // namespace

int32_t DraftLength::Next(int32_t match, int32_t running, double row_cost) {
  if (match == 0 || running > kMostRunning) return 0;
  Acceptance& kind = KindOf(match);
  if (const int32_t best = Best(kind.rate(), running, row_cost); best > 0) {
    kind.Pays();
    return best;
  }
  // Where even perfect drafts would not pay, there is nothing to try.
  if (Best(1.0, running, row_cost) == 0 || !kind.TriesAgain()) return 0;
  return kShort;
}

}  // namespace eta
