// lint: untrusted-input, fuzz-covered
#include "engine/chat/tools/answer_reader.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/chat/tools/call_id.h"
#include "engine/chat/tools/json_cursor.h"
#include "engine/chat/tools/marked_text.h"

namespace eta {
namespace {

size_t LeadingSpace(std::string_view text) {
  return static_cast<size_t>(std::find_if_not(text.begin(), text.end(), IsJsonSpace) -
                             text.begin());
}

// White space that is held back, since a mark may follow. More of it is text.
constexpr size_t kMaxHeldSpace = 256;

size_t WithoutTrailingSpace(std::string_view text, size_t end) {
  const size_t least = end - std::min(end, kMaxHeldSpace);
  while (end > least && IsJsonSpace(text[end - 1])) --end;
  return end;
}

}  // namespace

AnswerReader::AnswerReader(Options options) : options_(std::move(options)) {
  if (options_.form.channels) channels_.emplace(options_);
  state_ = options_.in_reasoning                    ? State::kReasoning
           : !options_.form.reasoning_begin.empty() ? State::kStart
                                                    : TextState();
}

AnswerReader::State AnswerReader::TextState() const {
  const bool finds_calls = !options_.tools.empty() && options_.form.calls != CallSyntax::kNone;
  return finds_calls ? State::kText : State::kPlain;
}

std::string_view AnswerReader::CallMark() const {
  return options_.form.calls == CallSyntax::kTagged ? kTagBegin : kMistralCalls;
}

AnswerPart AnswerReader::Push(std::string_view text, std::span<const TextMark> marks) {
  if (channels_) return channels_->Push(text, marks);
  AnswerPart part;
  AppendMarked(options_.form, text, marks, held_);
  while (!held_.empty() && Step(part)) {
  }
  return part;
}

AnswerPart AnswerReader::Finish() {
  if (channels_) return channels_->Finish();
  AnswerPart part;
  while (state_ == State::kCall) {
    const std::string_view behind = std::string_view(held_).substr(call_at_);
    if (scanner_->EndsWell(behind)) {
      KeepCalls();
      held_.clear();
      break;
    }
    BreakCall(scanner_->whole_calls(), part);
    while (!held_.empty() && Step(part)) {
    }
  }
  const bool only_space = LeadingSpace(held_) == held_.size();
  const bool drops = only_space && (after_call_ || state_ == State::kReasoned ||
                                    (state_ == State::kReasoning && options_.tell_reasoning));
  if (!drops) {
    const bool reasons = state_ == State::kReasoning && options_.tell_reasoning;
    Release(held_.size(), reasons ? part.reasoning : part.text);
  }
  held_.clear();
  return part;
}

bool AnswerReader::Step(AnswerPart& part) {
  switch (state_) {
    case State::kStart:
      return Start(part);
    case State::kReasoning:
      return Reasoning(part);
    case State::kReasoned:
      return Reasoned();
    case State::kText:
      return Text(part);
    case State::kCall:
      return Call(part);
    case State::kPlain:
      break;
  }
  return Plain(part);
}

bool AnswerReader::Start(AnswerPart& part) {
  const size_t at = LeadingSpace(held_);
  const size_t size = MatchMark(options_.form, held_, at, options_.form.reasoning_begin);
  if (size == 0 || at > kMaxHeldSpace) {
    state_ = TextState();
    return true;
  }
  if (size == kMore) return false;
  state_ = State::kReasoning;
  std::string dropped;
  Release(at + size, options_.tell_reasoning ? dropped : part.text);
  return true;
}

bool AnswerReader::Reasoning(AnswerPart& part) {
  const AnswerForm& form = options_.form;
  const size_t end = FindMark(form, held_, 0, form.reasoning_end);
  const size_t size = MatchMark(form, held_, end, form.reasoning_end);
  const bool ends = size != kMore && size != 0;
  if (options_.tell_reasoning) {
    const size_t first = reasoning_told_ ? 0 : std::min(LeadingSpace(held_), end);
    held_.erase(0, first);
    const size_t told = WithoutTrailingSpace(held_, end - first);
    reasoning_told_ = reasoning_told_ || told > 0;
    Release(told, part.reasoning);
    if (ends) held_.erase(0, end - first - told + size);
  } else {
    Release(ends ? end + size : end, part.text);
  }
  if (ends) state_ = options_.tell_reasoning ? State::kReasoned : TextState();
  return ends;
}

bool AnswerReader::Reasoned() {
  held_.erase(0, LeadingSpace(held_));
  if (held_.empty()) return false;
  state_ = TextState();
  return true;
}

bool AnswerReader::Text(AnswerPart& part) {
  if (options_.form.calls == CallSyntax::kBare) {
    const size_t at = LeadingSpace(held_);
    const size_t tag = MatchMark(options_.form, held_, at, kPythonTag);
    const bool may_be = at <= kMaxHeldSpace && (tag != 0 || held_[at] == '{');
    if (may_be && tag == kMore) return false;
    if (may_be) {
      BeginCall(at);
    } else {
      state_ = State::kPlain;
    }
    return true;
  }
  const std::string_view mark = CallMark();
  const size_t end =
      calls_.size() < kMaxToolCalls ? FindMark(options_.form, held_, 0, mark) : held_.size();
  const size_t size = MatchMark(options_.form, held_, end, mark);
  // White space may turn out to stand before a call, or behind one at the end.
  const size_t certain = WithoutTrailingSpace(held_, end);
  if (certain > 0) after_call_ = false;
  Release(certain, part.text);
  if (size == kMore) return false;
  BeginCall(end - certain + size);
  return true;
}

void AnswerReader::BeginCall(size_t at) {
  call_at_ = at;
  scanner_.emplace(options_.form, options_.tools, kMaxToolCalls - calls_.size());
  told_ = 0;
  told_bytes_ = 0;
  state_ = State::kCall;
}

bool AnswerReader::Call(AnswerPart& part) {
  const CallScanner::State state = scanner_->Scan(std::string_view(held_).substr(call_at_));
  if (state == CallScanner::State::kBroken) {
    BreakCall(/*kept=*/0, part);
    return true;
  }
  TellCalls(part);
  if (state == CallScanner::State::kMore) return false;
  held_.erase(0, call_at_ + scanner_->position());
  KeepCalls();
  return true;
}

void AnswerReader::TellCalls(AnswerPart& part) {
  const std::vector<CallScanner::Call>& calls = scanner_->calls();
  for (size_t i = told_ > 0 ? told_ - 1 : 0; i < calls.size(); ++i) {
    const CallScanner::Call& call = calls[i];
    if (call.name.empty() || call.arguments.empty()) return;
    CallDelta delta;
    if (i == told_) {
      delta.index = next_index_++;
      delta.id =
          CallId(options_.seed, options_.prompt_tokens, delta.index, options_.form.short_ids);
      delta.name = call.name;
      pending_.push_back({.id = delta.id, .name = call.name, .arguments_json = {}});
      told_bytes_ = 0;
      ++told_;
    } else {
      delta.index = next_index_ - 1;
      if (told_bytes_ == call.arguments.size()) continue;
    }
    delta.arguments = call.arguments.substr(told_bytes_);
    told_bytes_ = call.arguments.size();
    pending_.back().arguments_json += delta.arguments;
    part.calls.push_back(std::move(delta));
  }
}

void AnswerReader::KeepCalls() {
  std::move(pending_.begin(), pending_.end(), std::back_inserter(calls_));
  pending_.clear();
  scanner_.reset();
  after_call_ = true;
  state_ = TextState();
}

// What follows the mark may hold a call of its own.
void AnswerReader::BreakCall(size_t kept, AnswerPart& part) {
  TellCalls(part);  // so that indices do not depend on how the answer is cut
  const auto withdrawn = static_cast<int32_t>(pending_.size() - kept);
  for (int32_t i = next_index_ - withdrawn; i < next_index_; ++i) {
    CallDelta& delta = part.calls.emplace_back();
    delta.index = i;
    delta.withdrawn = true;
  }
  pending_.resize(kept);
  if (kept > 0) {
    held_.erase(0, call_at_ + scanner_->whole_end());
    KeepCalls();
    return;
  }
  scanner_.reset();
  after_call_ = false;
  if (options_.form.calls == CallSyntax::kBare) {
    state_ = State::kPlain;
    return;
  }
  Release(call_at_, part.text);
  state_ = State::kText;
}

bool AnswerReader::Plain(AnswerPart& part) {
  Release(held_.size(), part.text);
  return false;
}

void AnswerReader::Release(size_t bytes, std::string& text) {
  text += PlainText(std::string_view(held_).substr(0, bytes));
  held_.erase(0, bytes);
}

}  // namespace eta
