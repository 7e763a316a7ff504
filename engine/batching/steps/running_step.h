// A step on its way through the pipeline (step_pipeline.h): its rows, their draws, and what became
// of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/batching/formats/bound_answer.h"
#include "engine/batching/sequence.h"
#include "engine/batching/steps/step_batch.h"
#include "engine/request/observer.h"
#include "engine/request/shadow/shadow_sampler.h"

namespace eta {

// A sequence's rows in a step.
struct StepMember {
  Sequence* sequence;
  SequenceRows rows;
  BlockTables::Lengths lengths = {};  // before the step was prepared, if it is
  int32_t drafts = 0;                 // of the rows, the last ones
  int32_t rejected = 0;               // of these, those that count for nothing
  // Its one row makes the draft that follows those that are made.
  bool makes_draft = false;
};

// A row whose logits are wanted.
struct DrawnRow {
  Sequence* sequence;
  bool of_prompt;                 // the token is known, not drawn
  std::vector<TokenLogprob> top;  // storage of a prompt token's alternatives
};

struct StepEnding {
  std::unique_ptr<Sequence> sequence;
  absl::Status status;
};

struct RunningStep {
  RunningStep(Model& model, const KvCache& cache)
      : batch(model, cache), shadow(model.config().num_layers, model.config().num_query_heads) {}

  // Every sequence draws one token of its answer.
  bool only_decodes() const {
    return draws.size() == members.size() &&
           std::all_of(members.begin(), members.end(), [](const StepMember& member) {
             return member.rows.kind == RowKind::kDecode && member.rows.num_rows == 1 &&
                    !member.makes_draft;
           });
  }

  StepBatch batch;
  std::vector<StepMember> members;
  std::vector<DrawnRow> draws;
  std::vector<RowLogits> logits;  // of draws
  std::vector<std::shared_ptr<BoundAnswer>>
      bound;  // of members that draw, till their masks are there
  ShadowRows shadow;
  ShadowSampler::Work shadow_work;
  int64_t number = 0;  // of steps that were launched
  StepReport report;
  bool committed = false;  // and not completed
  std::vector<StepEnding> endings;
  // For the observer; empty without one.
  std::vector<TokenReport> tokens;
  std::vector<DecodeRowReport> decode_rows;
  std::vector<PrefillReport> prefill_rows;
  std::vector<ShadowReport> shadow_rows;
};

}  // namespace eta
