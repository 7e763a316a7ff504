// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/patterns/pattern.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/utf8_characters.h"

namespace eta::schema {
namespace {

// The steps that wait for the next character, each once.
class Waiting {
 public:
  explicit Waiting(const std::vector<PatternStep>& steps)
      : steps_(&steps), seen_(steps.size() + 1, 0) {}

  void Clear() {
    at_.clear();
    ++round_;
  }
  // A step, and all that are reached from it without a character.
  void Reach(size_t first) {
    open_.push_back(first);
    while (!open_.empty()) {
      const size_t at = open_.back();
      open_.pop_back();
      if (seen_[at] == round_) continue;
      seen_[at] = round_;
      if (at == steps_->size() || (*steps_)[at].set >= 0) {
        at_.push_back(at);
        continue;
      }
      const PatternStep& step = (*steps_)[at];
      open_.push_back(static_cast<size_t>(static_cast<int64_t>(at) + step.next));
      open_.push_back(static_cast<size_t>(static_cast<int64_t>(at) + step.other));
    }
  }
  const std::vector<size_t>& at() const { return at_; }
  bool AtEnd() const { return seen_[steps_->size()] == round_; }

 private:
  const std::vector<PatternStep>* steps_;
  std::vector<size_t> at_;
  std::vector<size_t> open_;
  std::vector<uint64_t> seen_;
  uint64_t round_ = 1;
};

}  // namespace

bool Pattern::Matches(std::string_view text) const {
  Waiting now(steps_);
  Waiting then(steps_);
  now.Reach(0);
  for (size_t at = 0; at < text.size() && !now.at().empty(); at += Utf8Length(text[at])) {
    const char32_t character = Utf8At(text, at);
    then.Clear();
    for (const size_t step : now.at()) {
      if (step == steps_.size()) continue;
      if (sets_[static_cast<size_t>(steps_[step].set)].Contains(character)) then.Reach(step + 1);
    }
    std::swap(now, then);
  }
  return now.AtEnd();
}

std::optional<std::string> Pattern::WholeText(const Lengths& lengths) const {
  if (lengths.low <= lengths_.low && lengths.high >= lengths_.high) return whole_;
  if (repeated_ < 0) return std::nullopt;
  const uint32_t low = std::max(lengths.low, lengths_.low);
  const uint32_t high = std::min(lengths.high, lengths_.high);
  const CharSet plain = sets_[static_cast<size_t>(repeated_)].And(CharSet::PlainInJson());
  if (low > high || (plain.empty() && low > 0)) return std::string();
  if (plain.empty()) return "()";
  return absl::StrCat(plain.Text(), "{", low, ",",
                      high == kUnbounded ? std::string() : absl::StrCat(high), "}");
}

}  // namespace eta::schema
