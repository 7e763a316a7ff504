// Perplexity and densities of a model under several ways of attending, over the same windows of
// text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/perplexity/divergence_meter.h"
#include "calibration/evaluation/perplexity/shadow_meter.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/solvers/interval.h"

namespace eta {

struct PerplexityOptions {
  // The first rows of a window, which are fed as a prompt and not scored. Every later row is a
  // decode row. With full attention all rows are fed as prefill rows, which gives the same result
  // faster.
  int32_t prefill = 0;
  bool recall = true;                         // costs one more read of every key
  std::span<const int32_t> special_ids = {};  // ascending; may be tempered
  // The backend that runners run through. Rivals need it; none of them chooses afterwards.
  RivalBackend* rivals = nullptr;
  double mass = 0.0;  // share of the decode rows that are measured against full attention
  double kl = 0.0;    // share of the scored rows whose divergence from the first is measured
  std::function<void(size_t way)> turn;  // hears whose rows come next; may be empty
  std::function<void(int64_t done, int64_t total)> progress;  // rows; may be empty
};

struct AttentionScore {
  std::vector<float> losses;     // negative log-probability of every scored token, in text order
  int32_t window = 0;            // scored tokens of one window; intervals are over windows
  MeanInterval loss;             // nats per token; perplexity = exp
  MeanInterval loss_over_first;  // paired difference to the first attention's, token by token
  double top_1 = 0.0;            // share of scored tokens that were the most likely ones
  double head_density = 1.0;     // mean over scored rows (eta-semantics.md, "What is counted")
  double union_density = 1.0;
  double v_read = 1.0;
  std::optional<double> prefill_density;  // of sparse prefill, over the rows that are fed
  double index_read = 0.0;                // bytes read to choose blocks, over those of all K and V
  std::optional<double> recall;  // share of keys with S >= tau_eff that were admitted; no rival's
  std::vector<double> head_recall;  // of each layer and query head with such keys; with recall
  std::optional<ShadowSummary> shadow;
  std::optional<double> divergence;  // KL(first || this), nats; not of the first
  double tokens_per_second = 0.0;    // of all rows of the windows

  // Bytes read over those of all K and V.
  double bytes_read() const { return (union_density + v_read) / 2.0 + index_read; }
};

// The paired difference of losses, token by token. REQUIRES: of the same windows.
MeanInterval PairedDifference(const AttentionScore& score, const AttentionScore& other);

// Returns one score per attention, in order. Ways whose prompts are computed alike go on from one
// prompt, window by window; the time of it counts for each of them. Windows are [context + 1]
// tokens, longer than prefill
// + 1. Errors of `runners`; InvalidArgument for a share `kl` whose logits do not fit in memory.
absl::StatusOr<std::vector<AttentionScore>> EvaluatePerplexity(
    const RunnerSource& runners, std::span<const std::vector<int32_t>> windows,
    std::span<const EvaluatedAttention> attentions, const PerplexityOptions& options);

}  // namespace eta
