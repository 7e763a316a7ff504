#include "calibration/evaluation/attention/sequence_settings.h"

#include <algorithm>

#include "engine/model/rope/rope_base.h"

namespace eta {
namespace {

// The profile whose thresholds a gate compares keys with. Models with relative thresholds have no
// gate.
const ThresholdProfile* GateProfile(const EvaluatedAttention& attention) {
  const ThresholdProfile* profile = attention.profile.get();
  return profile != nullptr && profile->relative_c ? nullptr : profile;
}

}  // namespace

SequenceSettings SequenceSettingsOf(const EvaluatedAttention& attention,
                                    std::span<const int32_t> special_ids, const ModelConfig& config,
                                    int64_t tokens) {
  SequenceSettings settings = {.attention = attention.options,
                               .rope_theta = RopeTheta(config, tokens)};
  if (attention.profile) settings.frozen_thresholds = attention.profile->thresholds;
  if (attention.head_z) settings.head_z = attention.profile->head_z;
  if (attention.temper_special) settings.tempered_ids = special_ids;
  return settings;
}

bool SamePrompt(const EvaluatedAttention& a, const EvaluatedAttention& b) {
  const auto reads_all = [](const EvaluatedAttention& attention) {
    return attention.options.admit_all || !attention.options.sparse_prefill;
  };
  return reads_all(a) && reads_all(b) && a.geometry == b.geometry &&
         a.temper_special == b.temper_special && a.options.offset == b.options.offset &&
         GateProfile(a) == GateProfile(b);
}

std::vector<std::vector<size_t>> ByPrompt(std::span<const EvaluatedAttention> attentions,
                                          bool rivals_apart) {
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < attentions.size(); ++i) {
    const auto group = std::ranges::find_if(groups, [&](const std::vector<size_t>& others) {
      const EvaluatedAttention& first = attentions[others.front()];
      const bool apart = rivals_apart && !first.rival != !attentions[i].rival;
      return !apart && SamePrompt(first, attentions[i]);
    });
    if (group != groups.end()) {
      group->push_back(i);
    } else {
      groups.push_back({i});
    }
  }
  return groups;
}

}  // namespace eta
