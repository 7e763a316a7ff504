#include "engine/batching/drafts/draft_attention.h"

#include <algorithm>

namespace eta {
namespace {

// By how much a draft's threshold must lie above that of the sequence's own rows, or its z below
// theirs, to read clearly less.
constexpr float kLeastHigherC = 0.75f;
constexpr float kLeastNarrowerZ = 0.75f;

bool IsSparser(const ResolvedAttention& own) {
  const AttentionOptions& options = own.options;
  if (options.admit_all) return true;
  if (options.relative) {
    return kDraftRelativeC >= options.relative_c - options.offset + kLeastHigherC;
  }
  float z = options.z;
  if (own.head_z) z = *std::ranges::min_element(own.profile->head_z);
  return kDraftZ <= z - kLeastNarrowerZ;
}

}  // namespace

std::optional<ResolvedAttention> DraftAttention(const ResolvedAttention& own,
                                                const ModelConfig& config) {
  if (!config.has_dynamic_thresholds() || !IsSparser(own)) return std::nullopt;
  ResolvedAttention draft = own;
  AttentionOptions& options = draft.options;
  draft.head_z = false;
  options.admit_all = false;
  options.relative = config.has_relative_thresholds();
  options.sink_blocks = std::min(options.sink_blocks, config.sink_blocks);
  options.pinned_blocks = std::min(options.pinned_blocks, AttentionOptions().pinned_blocks);
  options.confirm = false;
  if (own.options.admit_all) {
    options.sink_blocks = config.sink_blocks;
    options.shared_reads = config.shared_reads;
    options.uniform_floor = config.gate == Gate::kSilu;
  }
  if (options.relative) {
    draft.profile = nullptr;
    options.relative_c = kDraftRelativeC;
    options.offset = 0.0f;
  } else {
    options.z = kDraftZ;
  }
  return draft;
}

}  // namespace eta
