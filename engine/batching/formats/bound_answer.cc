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
      mask_(MaskWords(config.vocab_size)) {
  early_ends_.insert(early_ends_.end(), config.eos_ids.begin(), config.eos_ids.end());
  if (request.stopping.ignore_eos) late_ends_ = config.eos_ids;
  for (std::vector<int32_t>* const ends : {&early_ends_, &late_ends_}) {
    std::erase_if(*ends, [&](int32_t id) { return id < 0 || id >= vocab_size_; });
  }
  taken_.reserve(early_ends_.size());
  if (request.in_reasoning) text_ = format_->format().reasoning_begin;
}

void BoundAnswer::Fill() {
  const Clock::time_point begin = Clock::now();
  try {
    next_ = guide_->Fill(mask_) ? Next::kMasked : Next::kAny;
    ForbidEnds();
  } catch (const std::bad_alloc&) {
    next_ = Next::kNoMemory;
  }
  fill_time_ = Clock::now() - begin;
}

void BoundAnswer::ForbidEnds() {
  const std::span<const int32_t> ends = num_tokens_ < min_tokens_ ? early_ends_ : late_ends_;
  if (next_ == Next::kAny) {
    if (ends.empty()) return;
    std::fill(mask_.begin(), mask_.end(), ~uint32_t{0});
    next_ = Next::kMasked;
  }
  if (const auto rest = static_cast<int32_t>(vocab_size_ % kWordBits); rest > 0) {
    mask_.back() &= (uint32_t{1} << rest) - 1;
  }
  Forbid(ends);
  if (!AnyAllowed()) Allow(taken_);
  if (!taken_.empty() || AnyAllowed()) return;
  next_ = complete() && guide_->failure().ok() ? Next::kNothing : Next::kStuck;
}

void BoundAnswer::Forbid(std::span<const int32_t> ends) {
  taken_.clear();
  for (const int32_t id : ends) {
    if (!HasToken(mask_, id)) continue;
    RemoveToken(mask_, id);
    taken_.push_back(id);
  }
}

void BoundAnswer::Allow(std::span<const int32_t> ends) {
  for (const int32_t id : ends) AddToken(mask_, id);
}

bool BoundAnswer::AnyAllowed() const {
  return std::any_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word != 0; });
}

absl::Status BoundAnswer::Undrawn() const {
  switch (next_) {
    case Next::kNothing:
      return absl::OkStatus();
    case Next::kNoMemory:
      return OutOfMemory();
    case Next::kAny:
    case Next::kMasked:
    case Next::kStuck:
      break;
  }
  RETURN_IF_ERROR(guide_->failure());
  return UnsupportedByModel("format",
                            "no token of the model's vocabulary can come next, and the answer may "
                            "not end yet");
}

absl::Status BoundAnswer::Accept(int32_t token) {
  return CatchOutOfMemory([&]() -> absl::Status {
    if (!guide_->Accept(token)) {
      RETURN_IF_ERROR(guide_->failure());
      return Invalid(
          absl::StrCat("the format does not take token ", token, ", which it allowed to be drawn"));
    }
    text_.append(tokenizer_.ShownBytes(token));
    ++num_tokens_;
    return absl::OkStatus();
  });
}

absl::Status BoundAnswer::Check(FinishReason reason) const {
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
