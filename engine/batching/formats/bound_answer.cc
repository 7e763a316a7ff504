#include "engine/batching/formats/bound_answer.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/format/token_mask.h"
#include "kernels/params/sampling.h"

namespace eta {
namespace {

constexpr int32_t kWordBits = 32;

absl::Status Invalid(const std::string& message) {
  return MakeError(absl::StatusCode::kInternal, message, {.reason = "ANSWER_INVALID"});
}

}  // namespace

BoundAnswer::BoundAnswer(const Request& request, const ModelConfig& config,
                         const Tokenizer& tokenizer)
    : format_(request.format),
      guide_(request.format->NewGuide(request.in_reasoning)),
      tokenizer_(tokenizer),
      vocab_size_(config.vocab_size),
      min_tokens_(request.stopping.min_tokens),
      early_ends_(request.stopping.stop_ids),
      places_(1, {.mask = std::vector<uint32_t>(MaskWords(config.vocab_size))}) {
  early_ends_.insert(early_ends_.end(), config.eos_ids.begin(), config.eos_ids.end());
  if (request.stopping.ignore_eos) late_ends_ = config.eos_ids;
  for (std::vector<int32_t>* const ends : {&early_ends_, &late_ends_}) {
    std::erase_if(*ends, [&](int32_t id) { return id < 0 || id >= vocab_size_; });
  }
  taken_.reserve(early_ends_.size());
  if (request.in_reasoning) text_ = format_->format().reasoning_begin;
}

size_t BoundAnswer::CountFitting(std::span<const int32_t> drafts) {
  CatchUp();
  const size_t count = Take(drafts, [](size_t) {});
  guide_->Rollback(static_cast<int32_t>(count));
  return count;
}

template <typename Taken>
size_t BoundAnswer::Take(std::span<const int32_t> tokens, const Taken& taken) {
  size_t count = 0;
  try {
    for (; count < tokens.size() && guide_->Accept(tokens[count]); taken(count)) ++count;
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
  return count;
}

void BoundAnswer::CatchUp() {
  const size_t count = Take(untaken_, [](size_t) {});
  if (count < untaken_.size() && !lost_) refused_ = untaken_[count];
  untaken_.clear();
}

absl::Status BoundAnswer::Refused() const {
  if (lost_) return OutOfMemory();
  if (!refused_) return absl::OkStatus();
  RETURN_IF_ERROR(guide_->failure());
  return Invalid(
      absl::StrCat("the format does not take token ", *refused_, ", which it allowed to be drawn"));
}

void BoundAnswer::Expect(std::span<const int32_t> drafts, size_t from) {
  from_ = from;
  drafts_.assign(drafts.begin(), drafts.end());
  places_.resize(drafts.size() + 1);
  for (Place& place : places_) place.mask.resize(places_.front().mask.size());
}

void BoundAnswer::Fill() {
  const Clock::time_point begin = Clock::now();
  const auto fill = [&](size_t ahead) {
    if (ahead >= from_) Fill(places_[ahead], num_tokens_ + static_cast<int32_t>(ahead));
  };
  for (Place& place : places_) place.next = Next::kStuck;
  CatchUp();
  if (!refused_) {
    fill(0);
    const size_t count = Take(drafts_, fill);
    if (count > 0) guide_->Rollback(static_cast<int32_t>(count));
  }
  fill_time_ = Clock::now() - begin;
}

void BoundAnswer::Fill(Place& place, int32_t num_tokens) {
  try {
    place.next = guide_->Fill(place.mask) ? Next::kMasked : Next::kAny;
    ForbidEnds(place, num_tokens);
    if (lost_) place.next = Next::kNoMemory;
  } catch (const std::bad_alloc&) {
    place.next = Next::kNoMemory;
  }
}

void BoundAnswer::ForbidEnds(Place& place, int32_t num_tokens) {
  const std::span<const int32_t> ends = num_tokens < min_tokens_ ? early_ends_ : late_ends_;
  if (place.next == Next::kAny) {
    if (ends.empty()) return;
    std::fill(place.mask.begin(), place.mask.end(), ~uint32_t{0});
    place.next = Next::kMasked;
  }
  if (const auto rest = static_cast<int32_t>(vocab_size_ % kWordBits); rest > 0) {
    place.mask.back() &= (uint32_t{1} << rest) - 1;
  }
  Forbid(ends, place);
  const auto any = [&] {
    return std::any_of(place.mask.begin(), place.mask.end(),
                       [](uint32_t word) { return word != 0; });
  };
  if (!any()) {
    for (const int32_t id : taken_) AddToken(place.mask, id);
  }
  if (!taken_.empty() || any()) return;
  place.next = complete() && guide_->failure().ok() ? Next::kNothing : Next::kStuck;
}

void BoundAnswer::Forbid(std::span<const int32_t> ends, Place& place) {
  taken_.clear();
  for (const int32_t id : ends) {
    if (!HasToken(place.mask, id)) continue;
    RemoveToken(place.mask, id);
    taken_.push_back(id);
  }
}

absl::Status BoundAnswer::Undrawn(size_t ahead) const {
  switch (next(ahead)) {
    case Next::kNothing:
      return absl::OkStatus();
    case Next::kNoMemory:
      return OutOfMemory();
    case Next::kAny:
    case Next::kMasked:
    case Next::kStuck:
      break;
  }
  RETURN_IF_ERROR(Refused());
  RETURN_IF_ERROR(guide_->failure());
  return UnsupportedByModel("format",
                            "no token of the model's vocabulary can come next, and the answer may "
                            "not end yet");
}

absl::Status BoundAnswer::Accept(int32_t token) {
  return CatchOutOfMemory([&] {
    untaken_.push_back(token);
    text_.append(tokenizer_.ShownBytes(token));
    ++num_tokens_;
    return absl::OkStatus();
  });
}

bool BoundAnswer::complete() {
  CatchUp();
  return !refused_ && guide_->Complete();
}

absl::Status BoundAnswer::Check(FinishReason reason) {
  CatchUp();
  RETURN_IF_ERROR(Refused());
  if (reason == FinishReason::kStopString || reason == FinishReason::kCutOff) {
    return absl::OkStatus();
  }
  if (!complete()) {
    if (reason != FinishReason::kEndOfText) return absl::OkStatus();
    return Invalid("the answer ended before it was what its format asks for");
  }
  const absl::Status checked = CatchOutOfMemory([&] { return format_->Check(text_); });
  if (!absl::IsInternal(checked) || !GetErrorDetail(checked).reason.empty()) return checked;
  return Invalid(std::string(checked.message()));
}

}  // namespace eta
