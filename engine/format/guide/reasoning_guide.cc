#include "engine/format/guide/reasoning_guide.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/format/token_mask.h"

namespace eta {

ReasoningGuide::ReasoningGuide(std::shared_ptr<const Reasoning> reasoning, MakeMatcher make_matcher,
                               bool in_reasoning)
    : reasoning_(std::move(reasoning)), direct_(make_matcher()), after_(make_matcher()) {
  if (in_reasoning || reasoning_->begin().empty())
    state_ = {.phase = Phase::kReasoning, .direct = false};
}

bool ReasoningGuide::Fill(std::span<uint32_t> mask) {
  switch (state_.phase) {
    case Phase::kBound:
      return direct_->Fill(mask);
    case Phase::kAnswer:
      return after_->Fill(mask);
    case Phase::kReasoning:
      std::ranges::copy(reasoning_->Mask(state_.matched), mask.begin());
      return true;
    case Phase::kOpening:
      break;
  }
  if (!state_.direct) {
    std::ranges::fill(mask, 0);
  } else if (!direct_->Fill(mask)) {
    return false;
  }
  for (const int32_t id : reasoning_->Openings(state_.matched)) AddToken(mask, id);
  return true;
}

bool ReasoningGuide::Accept(int32_t token) {
  Step step{.before = state_};
  bool taken = false;
  switch (state_.phase) {
    case Phase::kBound:
      taken = step.direct = direct_->Accept(token);
      break;
    case Phase::kAnswer:
      taken = step.after = after_->Accept(token);
      break;
    case Phase::kReasoning:
      taken = !reasoning_->vocabulary().IsEnd(token) &&
              Reason(reasoning_->vocabulary().Bytes(token), step);
      break;
    case Phase::kOpening:
      taken = Open(token, step);
      break;
  }
  if (!taken) return false;
  steps_.push_back(step);
  return true;
}

bool ReasoningGuide::Open(int32_t token, Step& step) {
  step.direct = state_.direct && direct_->Accept(token);
  const auto& openings = reasoning_->Openings(state_.matched);
  if (!std::ranges::binary_search(openings, token)) {
    if (!step.direct) return false;
    state_ = {.phase = Phase::kBound, .direct = true};
    return true;
  }
  const std::string_view bytes = reasoning_->vocabulary().Bytes(token);
  const size_t left = reasoning_->begin().size() - state_.matched;
  if (bytes.size() < left) {
    state_.matched += bytes.size();
    state_.direct = step.direct;
    return true;
  }
  state_ = {.phase = Phase::kReasoning, .matched = 0, .direct = false};
  return Reason(bytes.substr(left), step);
}

bool ReasoningGuide::Reason(std::string_view bytes, Step& step) {
  const Reasoning::Progress progress = reasoning_->Advance(state_.matched, bytes);
  if (!progress.ended) {
    state_.matched = progress.matched;
    return true;
  }
  if (!progress.rest.empty()) {
    if (!after_->AcceptText(progress.rest)) return false;
    step.after = true;
  }
  state_ = {.phase = Phase::kAnswer, .matched = 0, .direct = false};
  return true;
}

void ReasoningGuide::Rollback(int32_t count) {
  for (; count > 0; --count) {
    const Step& step = steps_.back();
    if (step.direct) direct_->Rollback(1);
    if (step.after) after_->Rollback(1);
    state_ = step.before;
    steps_.pop_back();
  }
}

bool ReasoningGuide::Complete() const {
  switch (state_.phase) {
    case Phase::kOpening:
      return state_.direct && direct_->Complete();
    case Phase::kBound:
      return direct_->Complete();
    case Phase::kReasoning:
      return false;
    case Phase::kAnswer:
      return after_->Complete();
  }
  return false;
}

absl::Status ReasoningGuide::failure() const {
  const bool reasoned = state_.phase == Phase::kReasoning || state_.phase == Phase::kAnswer;
  return reasoned ? after_->failure() : direct_->failure();
}

}  // namespace eta
