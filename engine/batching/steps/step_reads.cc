#include "engine/batching/steps/step_reads.h"

namespace eta {
namespace {

void CountPrefill(RunningStep& step, bool observed) {
  for (const StepMember& member : step.members) {
    if (!IsSparsePrefill(member.rows)) continue;
    Sequence& sequence = *member.sequence;
    const AttentionSums sums = step.batch.CountPrefill(member.rows, sequence.prompt_counted());
    sequence.CountPrompt(sums, member.rows.position + member.rows.num_rows);
    if (!observed || sums.prefill_rows == 0) continue;
    step.prefill_rows.push_back(
        {.request = &sequence.request(), .attention = &sequence.attention(), .sums = sums});
  }
}

void CountMade(RunningStep& step, const StepMember& member, StepReads& reads) {
  const AttentionSums sums = step.batch.Count(member.rows, 0);
  member.sequence->CountMade(sums);
  ++step.report.drafts.made;
  step.report.drafts.kv_bytes_made += sums.kv_bytes_read;
  reads.work.kv_bytes += sums.kv_bytes_read;
  reads.load.first_bytes += sums.kv_bytes_read + sums.index_bytes_read;
}

}  // namespace

StepReads CountReads(RunningStep& step, bool observed) {
  CountPrefill(step, observed);
  StepReads reads{.work = step.shadow_work};
  for (const StepMember& member : step.members) {
    if (member.rows.kind != RowKind::kDecode) continue;
    if (member.makes_draft) {
      CountMade(step, member, reads);
      continue;
    }
    for (int32_t i = 0; i < member.rows.num_rows; ++i) {
      const bool rejected = i >= member.rows.num_rows - member.rejected;
      if (!rejected && !member.sequence->Counts(member.rows.position + i)) {
        reads.all_counted = false;
        continue;
      }
      const int32_t kv_len = member.rows.position + i + 1;
      Sequence& sequence = *member.sequence;
      const std::span<LayerDensity> layers =
          rejected ? std::span<LayerDensity>() : sequence.layers();
      const AttentionSums sums =
          sequence.FallsBack(member.rows.position + i)
              ? CountFallbackRow(step.batch.config(), step.batch.geometry(), kv_len)
              : step.batch.Count(member.rows, i, layers);
      const int64_t kv_bytes = sums.kv_bytes_read + sums.fallback_kv_bytes_read;
      reads.work.kv_bytes += kv_bytes;
      (i == 0 ? reads.load.first_bytes : reads.load.more_bytes) += kv_bytes + sums.index_bytes_read;
      reads.load.more_rows += i == 0 ? 0 : 1;
      if (rejected) {
        sequence.CountRejected(kv_bytes);
        step.report.drafts.kv_bytes_rejected += kv_bytes;
        continue;
      }
      sequence.CountRow(sums);
      if (!observed) continue;
      step.decode_rows.push_back({.request = &sequence.request(),
                                  .attention = &sequence.attention(),
                                  .row = member.rows.row_begin + i,
                                  .kv_len = kv_len,
                                  .sums = sums});
    }
  }
  return reads;
}

}  // namespace eta
