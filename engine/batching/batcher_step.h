// A step of the batcher, from its plan to its report. Included by the batcher alone.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/batching/batcher.h"

namespace eta {

struct Batcher::Member {
  Sequence* sequence;
  SequenceRows rows;
  int32_t early_blocks = 0;  // taken when the step was prepared
};

struct Batcher::Draw {
  Sequence* sequence;
  bool of_prompt;                 // the token is known, not drawn
  std::vector<TokenLogprob> top;  // storage of a prompt token's alternatives
};

struct Batcher::Ending {
  std::unique_ptr<Sequence> sequence;
  absl::Status status;
};

// A step from its plan to its report.
struct Batcher::Step {
  Step(Model& model, const KvCache& cache) : batch(model, cache) {}

  // Every sequence draws one token.
  bool only_decodes() const {
    return draws.size() == members.size() &&
           std::all_of(members.begin(), members.end(), [](const Member& member) {
             return member.rows.kind == RowKind::kDecode && member.rows.num_rows == 1;
           });
  }

  StepBatch batch;
  std::vector<Member> members;
  std::vector<Draw> draws;
  std::vector<RowLogits> logits;  // of draws
  StepReport report;
  bool taken = false;  // it has run, its tokens are taken, the rest is to be completed
  std::vector<Ending> endings;
  // For the observer; empty without one.
  std::vector<TokenReport> tokens;
  std::vector<DecodeRowReport> decode_rows;
};

}  // namespace eta
