#include "engine/batching/drafts/self_length.h"

namespace eta {
namespace {

constexpr double kLeastSelfGain =
    1.04;  // below that, what steps cost beside their rows is not paid
constexpr int32_t kTriedLength = 3;

// The length that brings tokens soonest; 0: none does.
int32_t BestLength(double acceptance, const SelfDraftCosts& costs) {
  double tokens = 1.0;
  double power = 1.0;
  double most = kLeastSelfGain;
  int32_t best = 0;
  for (int32_t k = 1; k <= SelfLength::kMost; ++k) {
    tokens += power *= acceptance;
    const double gain = tokens * costs.step / (costs.step + k * (costs.draft + costs.row));
    if (gain <= most) continue;
    most = gain;
    best = k;
  }
  return best;
}

}  // namespace

int32_t SelfLength::Next(const SelfDraftCosts& costs) {
  if (const int32_t best = BestLength(acceptance_.rate(), costs); best > 0) {
    acceptance_.Pays();
    return best;
  }
  if (BestLength(1.0, costs) == 0 || !acceptance_.TriesAgain()) return 0;
  return kTriedLength;
}

}  // namespace eta
