#include "engine/passes/pass_lane.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/batching/scheduler.h"

namespace eta {

struct PassLane::Member {
  PassRun* run;
  SequenceRows rows;
};

namespace {

absl::Status NoMemory() {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "the device ran out of memory for background work", {.reason = "DEVICE_ERROR"});
}

absl::Status BlocksMiscounted() {
  return MakeError(absl::StatusCode::kInternal,
                   "the KV cache has fewer blocks than were counted for this pass",
                   {.reason = "INTERNAL_ERROR"});
}

// Recall is counted over all decode rows of a step, so one pass's must be alone there.
bool MayShareAStep(const PassRun& run, const SequenceRows& rows, bool others_decode,
                   bool others_count_recall) {
  if (rows.kind != RowKind::kDecode) return true;
  return !others_count_recall && !(others_decode && run.WantRecall(rows));
}

}  // namespace

PassLane::PassLane(Backend& backend, StepBatch& batch, BlockPool& pool, int32_t max_step_rows)
    : batch_(batch),
      pool_(pool),
      max_step_rows_(max_step_rows),
      cells_(backend, batch.config()),
      shadow_(batch.config().num_layers, batch.config().num_query_heads) {
  const ModelConfig& config = batch.config();
  const auto heads =
      static_cast<size_t>(config.num_layers) * static_cast<size_t>(config.num_query_heads);
  above_.resize(heads);
  above_admitted_.resize(heads);
}

void PassLane::Add(std::unique_ptr<PassRun> run) {
  runs_.push_back(std::move(run));
}

bool PassLane::Cancel(uint64_t handle) {
  const auto found = std::find_if(runs_.begin(), runs_.end(),
                                  [&](const auto& run) { return run->handle() == handle; });
  if (found == runs_.end()) return false;
  Fail(**found, MakeError(absl::StatusCode::kCancelled, "cancelled by the client",
                          {.reason = "CLIENT_CANCELLED"}));
  return true;
}

void PassLane::FailAll(const absl::Status& status) {
  while (!runs_.empty()) Fail(*runs_.back(), status);
}

bool PassLane::GiveBlocks() {
  for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
    if ((*run)->blocks.empty()) continue;
    (*run)->blocks.Release(pool_);
    (*run)->Preempt();
    return true;
  }
  return false;
}

absl::StatusOr<int32_t> PassLane::Run(int32_t max_rows, int32_t spare_blocks) {
  const std::vector<Member> members = LayOut(max_rows, spare_blocks);
  if (members.empty()) return 0;
  int32_t num_rows = 0;
  for (const Member& member : members) num_rows += member.rows.num_rows;
  std::vector<RowLogits> logits;
  const absl::Status status = RunRows(members, logits);
  if (absl::IsResourceExhausted(status)) {
    GiveWay(members);
    return num_rows;
  }
  if (!status.ok()) return status;
  RETURN_IF_ERROR(Settle(members, logits));
  return num_rows;
}

std::vector<PassLane::Member> PassLane::LayOut(int32_t max_rows, int32_t spare_blocks) {
  std::vector<Member> members;
  std::vector<PassRun*> without_memory;
  std::vector<PassRun*> without_blocks;
  int32_t num_rows = 0;
  int32_t decode_rows = 0;
  bool full = false;  // nobody overtakes who waits for blocks
  bool recall = false;
  for (const auto& run : runs_) {
    if (num_rows == max_rows) break;
    if (run->blocks.empty()) {
      const auto needed = static_cast<int32_t>(batch_.groups().MostPages(
          run->num_tokens(), max_step_rows_, batch_.geometry().block_size));
      full = full || needed > spare_blocks;
      if (full) continue;
      const bool collects = run->pass().bins.has_value();
      if (collects && !cells_.IsOwner(run->handle())) {
        if (!cells_.free()) continue;
        if (!cells_.Give(run->handle(), *run->pass().bins).ok()) {
          without_memory.push_back(run.get());
          continue;
        }
      }
      spare_blocks -= needed;
      if (!run->blocks.Reserve(pool_, needed)) {
        without_blocks.push_back(run.get());
        continue;
      }
    }
    SequenceRows rows = run->NextRows(0, max_rows - num_rows);
    if (!MayShareAStep(*run, rows, decode_rows > 0, recall)) continue;
    if (rows.kind == RowKind::kDecode) {
      rows.num_rows = std::min(rows.num_rows, batch_.max_decode_rows() - decode_rows);
      if (rows.num_rows == 0) continue;
    }
    if (!run->blocks.Grow(pool_, run->num_tokens(), rows.position + rows.num_rows)) {
      without_blocks.push_back(run.get());
      continue;
    }
    run->blocks.ApplyTo(rows);
    if (rows.kind == RowKind::kDecode) decode_rows += rows.num_rows;
    members.push_back({run.get(), rows});
    num_rows += rows.num_rows;
    recall = recall || run->WantRecall(rows);
  }
  int32_t decode_end = 0;
  int32_t prefill_end = decode_rows;
  for (Member& member : members) {
    int32_t& end = member.rows.kind == RowKind::kDecode ? decode_end : prefill_end;
    member.rows.row_begin = end;
    end += member.rows.num_rows;
  }
  for (PassRun* run : without_memory) Fail(*run, NoMemory());
  for (PassRun* run : without_blocks) Fail(*run, BlocksMiscounted());
  return members;
}

absl::Status PassLane::RunRows(std::span<const Member> members, std::vector<RowLogits>& logits) {
  batch_.Clear();
  for (const RowKind kind : {RowKind::kDecode, RowKind::kPrefill}) {  // in the order of their rows
    for (const Member& member : members) {
      if (member.rows.kind == kind) batch_.Add(member.rows, member.run->tokens());
    }
  }
  ForwardOutputs outputs;
  for (const Member& member : members) {
    const PassRun& run = *member.run;
    for (int32_t i = 0; i < member.rows.num_rows; ++i) {
      const int32_t position = member.rows.position + i;
      if (!run.WantLoss(member.rows, position)) continue;
      const int32_t next = run.tokens()[static_cast<size_t>(position) + 1];
      logits.push_back({member.rows.row_begin + i,
                        {.forced = next, .num_logprobs = run.pass().top ? 1 : 0},
                        member.run->LogitsOf(position)});
    }
    if (run.WantRecall(member.rows)) {
      std::fill(above_.begin(), above_.end(), 0);
      std::fill(above_admitted_.begin(), above_admitted_.end(), 0);
      outputs.above = above_.data();
      outputs.above_admitted = above_admitted_.data();
    }
    if (member.rows.calibrate) {
      outputs.cells = cells_.data();
      outputs.bins = cells_.bins();
    }
  }
  top_.assign(logits.size(), {});
  for (size_t i = 0; i < logits.size(); ++i) {
    SampleRow& sample = logits[i].sample;
    sample.top = std::span(top_).subspan(i, static_cast<size_t>(sample.num_logprobs));
  }
  ChooseShadow(members);
  outputs.shadow = shadow_.Layers();
  return batch_.Run(logits, outputs);
}

// Rows that read all keys keep all mass, and are not measured.
void PassLane::ChooseShadow(std::span<const Member> members) {
  shadow_.Clear();
  for (const int32_t layer : batch_.config().full_layers()) {
    for (const Member& member : members) {
      if (!member.run->WantShadow(member.rows)) continue;
      for (int32_t i = 0; i < member.rows.num_rows; ++i) {
        if (!batch_.Prunes(member.rows, i)) continue;
        shadow_.Add({.layer = layer,
                     .row = member.rows.row_begin + i,
                     .kv_len = member.rows.position + i + 1});
      }
    }
  }
}

void PassLane::AddShadow(const Member& member) {
  for (int32_t i = 0; i < member.rows.num_rows; ++i) {
    for (const int32_t layer : batch_.config().full_layers()) {
      const ShadowRow* const measured = shadow_.Find(layer, member.rows.row_begin + i);
      member.run->AddShadow(measured ? measured->mass : 1.0f, measured ? measured->error : 0.0f);
    }
  }
}

// After a step that succeeded: what it measured, cache lengths, endings.
absl::Status PassLane::Settle(std::span<const Member> members, std::span<const RowLogits> logits) {
  shadow_.Read();
  auto wanted = logits.begin();
  for (const Member& member : members) {
    PassRun& run = *member.run;
    const SequenceRows& rows = member.rows;
    bool finite = true;
    for (int32_t i = 0; i < rows.num_rows; ++i) {
      if (run.WantLoss(rows, rows.position + i)) {
        finite = finite && wanted->sample.finite;
        run.AddLoss(-wanted->sample.logprob);
        // Of a tie either will do.
        if (run.pass().top) run.AddTop(wanted->sample.logprob >= wanted->sample.top[0].logprob);
        ++wanted;
      }
      if (rows.kind == RowKind::kDecode && run.AreNew(rows)) run.Count(batch_.Count(rows, i));
    }
    if (!finite) {
      Fail(run, MakeError(absl::StatusCode::kInternal,
                          "the model's logits for this text are NaN or infinite",
                          {.reason = "NONFINITE_LOGITS"}));
      continue;
    }
    if (run.WantShadow(rows)) AddShadow(member);
    if (run.WantRecall(rows)) run.AddRecall(above_, above_admitted_);
    run.Advance(rows);
    if (!run.done()) continue;
    std::vector<uint64_t> cells;
    if (cells_.IsOwner(run.handle())) {
      ASSIGN_OR_RETURN(cells, cells_.Read());
    }
    run.blocks.Release(pool_);
    run.Finish(std::move(cells));
    Forget(run);
  }
  return absl::OkStatus();
}

// The device had no memory for the step, of which nothing counts: the latest of its passes ends, so
// that the next step is smaller; and the one whose cells may have taken in a part of the step.
void PassLane::GiveWay(std::span<const Member> members) {
  for (const Member& member : members) {
    const bool latest = &member == &members.back();
    if (latest || member.rows.calibrate) Fail(*member.run, NoMemory());
  }
}

void PassLane::Fail(PassRun& run, const absl::Status& status) {
  run.blocks.Release(pool_);
  run.Fail(status);
  Forget(run);
}

void PassLane::Forget(const PassRun& run) {
  cells_.Reclaim(run.handle());
  std::erase_if(runs_, [&](const auto& other) { return other.get() == &run; });
  const bool collects = std::any_of(
      runs_.begin(), runs_.end(), [](const auto& other) { return other->pass().bins.has_value(); });
  if (!collects) cells_.Release();
}

int32_t PassLane::num_running() const {
  return static_cast<int32_t>(std::count_if(runs_.begin(), runs_.end(),
                                            [](const auto& run) { return !run->blocks.empty(); }));
}

}  // namespace eta
