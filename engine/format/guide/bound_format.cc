#include "engine/format/guide/bound_format.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/format/guide/reasoning_guide.h"
#include "engine/format/schema/answer_check.h"

namespace eta {
namespace {

absl::Status AnswerInvalid(const std::string& what) {
  return MakeError(absl::StatusCode::kInternal,
                   "the answer is not what its format asks for: " + what,
                   {.reason = "ANSWER_INVALID"});
}

constexpr char kAnyObject[] = R"({"type":"object"})";

}  // namespace

BoundFormat::BoundFormat(Parts parts) : parts_(std::move(parts)) {
  const AnswerFormat& format = parts_.format;
  if (format.reasoning_end.empty()) return;
  reasoning_ = std::make_shared<Reasoning>(format.reasoning_begin, format.reasoning_end,
                                           parts_.vocabulary, parts_.make_matcher);
}

std::unique_ptr<AnswerGuide> BoundFormat::NewGuide(bool in_reasoning) const {
  if (reasoning_ == nullptr) return parts_.make_matcher();
  return std::make_unique<ReasoningGuide>(reasoning_, parts_.make_matcher, in_reasoning);
}

size_t BoundFormat::bytes() const {
  size_t bytes = sizeof *this + parts_.bytes + parts_.format.source.size();
  for (const std::string& choice : parts_.format.choices) bytes += sizeof choice + choice.size();
  return bytes + (reasoning_ != nullptr ? reasoning_->bytes() : 0);
}

absl::StatusOr<std::string_view> BoundFormat::BoundPart(std::string_view answer) const {
  const AnswerFormat& format = parts_.format;
  if (reasoning_ == nullptr || !answer.starts_with(format.reasoning_begin)) return answer;
  const size_t end = answer.find(format.reasoning_end, format.reasoning_begin.size());
  if (end == std::string_view::npos) return AnswerInvalid("its reasoning does not end");
  return answer.substr(end + format.reasoning_end.size());
}

absl::Status BoundFormat::Check(std::string_view answer) const {
  if (parts_.by_tokens) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string_view bound, BoundPart(answer));
  // Beside tags a model writes freely: bytes that are no text become U+FFFD, as without a format.
  if (parts_.format.kind != AnswerFormatKind::kStructuralTag) {
    const std::optional<size_t> broken = FirstInvalidUtf8(bound);
    if (broken) return AnswerInvalid(absl::StrCat("it is not UTF-8 at byte ", *broken));
  }
  switch (parts_.format.kind) {
    case AnswerFormatKind::kJsonSchema:
      return CheckAnswer(parts_.format.source, bound);
    case AnswerFormatKind::kJsonObject:
      return CheckAnswer(kAnyObject, bound);
    case AnswerFormatKind::kChoice:
      if (std::ranges::find(parts_.format.choices, bound) != parts_.format.choices.end()) {
        return absl::OkStatus();
      }
      return AnswerInvalid("it is none of the choices");
    case AnswerFormatKind::kRegex:
    case AnswerFormatKind::kGrammar:
    case AnswerFormatKind::kStructuralTag:
      return Match(bound);
  }
  return AnswerInvalid("of a kind that is not known");
}

absl::Status BoundFormat::Match(std::string_view bound) const {
  const auto matcher = parts_.make_matcher();
  if (!matcher->AcceptText(bound)) {
    size_t fits = 0;
    while (fits < bound.size() && matcher->AcceptText(bound.substr(fits, 1))) ++fits;
    return AnswerInvalid(absl::StrCat("it leaves it at byte ", fits));
  }
  if (matcher->Complete()) return absl::OkStatus();
  return AnswerInvalid(absl::StrCat("it ends too early, after ", bound.size(), " bytes"));
}

}  // namespace eta
