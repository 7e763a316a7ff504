#include "calibration/needles/ruler_form.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

// Tokens per unit are first measured over so many units.
constexpr size_t kFirstStep = 8;

struct MeasuredPrompt {
  size_t units = 0;
  size_t tokens = 0;
};

// Tokens per unit between two of them: at least one.
double TokensPerUnit(const MeasuredPrompt& a, const MeasuredPrompt& b) {
  const double tokens = static_cast<double>(b.tokens) - static_cast<double>(a.tokens);
  return std::max(tokens / (static_cast<double>(b.units) - static_cast<double>(a.units)), 1.0);
}

// Looks for the most units that fit in `room` tokens: where a straight line through two prompts
// says, until the next unit is known to be too many.
class UnitSearch {
 public:
  UnitSearch(const RulerForm& form, const Tokenizer& tokenizer, size_t room)
      : form_(form), tokenizer_(tokenizer), room_(room), too_many_(form.most_units + 1) {}

  // False: the prompt of the least units has more tokens than `room`.
  absl::StatusOr<bool> Run() {
    ASSIGN_OR_RETURN(const MeasuredPrompt least, Measure(form_.least_units));
    if (least.tokens > room_) return false;
    size_t step = kFirstStep;
    while (fits_.units + 1 < too_many_) {
      const size_t units = fits_.units + std::clamp<size_t>(step, 1, too_many_ - 1 - fits_.units);
      const MeasuredPrompt before = fits_;
      ASSIGN_OR_RETURN(const MeasuredPrompt next, Measure(units));
      const double left = static_cast<double>(room_ - fits_.tokens);
      step = static_cast<size_t>(left / TokensPerUnit(before, next));
    }
    return true;
  }

  const MeasuredPrompt& last() const { return last_; }
  const MeasuredPrompt& fits() const { return fits_; }
  std::vector<int32_t> Take() { return std::move(prompt_); }

 private:
  absl::StatusOr<MeasuredPrompt> Measure(size_t units) {
    std::vector<int32_t> prompt = tokenizer_.beginning();
    ASSIGN_OR_RETURN(const auto text, tokenizer_.Encode(form_.prompt(units), /*add_bos=*/false));
    prompt.insert(prompt.end(), text.begin(), text.end());
    last_ = {.units = units, .tokens = prompt.size()};
    if (prompt.size() > room_) {
      too_many_ = units;
    } else {
      fits_ = last_;
      prompt_ = std::move(prompt);
    }
    return last_;
  }

  const RulerForm& form_;
  const Tokenizer& tokenizer_;
  size_t room_;
  size_t too_many_;  // units
  MeasuredPrompt last_;
  MeasuredPrompt fits_;
  std::vector<int32_t> prompt_;  // of fits_
};

// RULER's number of tokens is too small for a tokenizer that spells the answers.
absl::StatusOr<size_t> OutputTokens(const RulerForm& form, const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const auto answers, tokenizer.Encode(absl::StrJoin(form.answers, ", "), false));
  return std::max(static_cast<size_t>(form.max_tokens), answers.size());
}

absl::Status TooLittleText(const std::string& task, int32_t length) {
  return InvalidField("text", absl::StrCat(task, " of ", length, " tokens takes more of it"));
}

}  // namespace

absl::StatusOr<RulerQuestion> FitRulerForm(const std::string& task, const RulerForm& form,
                                           const Tokenizer& tokenizer, int32_t length) {
  if (form.most_units < form.least_units) return TooLittleText(task, length);
  ASSIGN_OR_RETURN(const size_t output, OutputTokens(form, tokenizer));
  const auto whole = static_cast<size_t>(std::max(length, 0));
  UnitSearch search(form, tokenizer, whole - std::min(whole, output));
  ASSIGN_OR_RETURN(const bool found, search.Run());
  if (!found) {
    const size_t least = search.last().tokens + output;
    return InvalidField("length", absl::StrCat(task, " takes at least ", least,
                                               " tokens with its output, it is ", length));
  }
  if (search.fits().units == form.most_units) return TooLittleText(task, length);
  return RulerQuestion{.prompt = search.Take(),
                       .answers = form.answers,
                       .any = form.any,
                       .max_tokens = static_cast<int32_t>(output)};
}

}  // namespace eta
