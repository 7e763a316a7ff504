// lint: untrusted-input, fuzz-covered
#include "engine/chat/tools/call_scanner.h"

#include <algorithm>
#include <utility>

#include "engine/chat/chat.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/tools/marked_text.h"

namespace eta {

CallScanner::State CallScanner::Scan(std::string_view marked) {
  starved_ = false;
  while (phase_ != Phase::kDone && at_ < marked.size() && !starved_) {
    if (Step(marked) == State::kBroken) return State::kBroken;
  }
  return phase_ == Phase::kDone ? State::kDone : State::kMore;
}

bool CallScanner::EndsWell(std::string_view marked) const {
  if (phase_ == Phase::kDone) return true;
  if (phase_ != Phase::kAfter || array_) return false;
  return std::all_of(marked.begin() + static_cast<std::ptrdiff_t>(at_), marked.end(), IsJsonSpace);
}

CallScanner::State CallScanner::Step(std::string_view marked) {
  const char c = marked[at_];
  const bool reads_space = phase_ == Phase::kObject || phase_ == Phase::kArguments ||
                           phase_ == Phase::kName || phase_ == Phase::kId;
  if (!reads_space && IsJsonSpace(c)) {
    ++at_;
    return State::kMore;
  }
  switch (phase_) {
    case Phase::kLead:
      return Lead(marked);
    case Phase::kAfter:
      return After(marked);
    case Phase::kName:
    case Phase::kId:
      return Name(marked);
    default:
      break;
  }
  if (c == kMarkByte) return State::kBroken;
  ++at_;
  if (phase_ == Phase::kItem) return Item(c);
  return phase_ == Phase::kObject ? Object(c) : Arguments(c);
}

CallScanner::State CallScanner::Lead(std::string_view marked) {
  if (form_.calls == CallSyntax::kBare && !past_python_tag_) {
    const size_t size = MatchMark(form_, marked, at_, kPythonTag);
    if (size == kMore) {
      starved_ = true;
      return State::kMore;
    }
    past_python_tag_ = true;
    at_ += size;
    if (size > 0) return State::kMore;
  }
  if (form_.calls != CallSyntax::kMistral) return Go(Phase::kItem);
  array_ = marked[at_] == '[';
  if (!array_) return Go(Phase::kName);
  ++at_;
  return Go(Phase::kItem);
}

CallScanner::State CallScanner::Item(char c) {
  if (calls_.size() == max_calls_) return State::kBroken;
  calls_.emplace_back();
  object_.emplace(tools_);
  phase_ = Phase::kObject;
  return Object(c);
}

CallScanner::State CallScanner::Object(char c) {
  const State state = object_->Feed(c);
  if (state == State::kBroken) return state;
  Call& call = calls_.back();
  if (call.name.empty()) call.name = object_->name();
  if (object_->arguments().size() > call.arguments.size()) call.arguments += c;
  if (state != State::kDone) return state;
  whole_calls_ = calls_.size();
  whole_end_ = at_;
  return Go(Phase::kAfter);
}

CallScanner::State CallScanner::After(std::string_view marked) {
  const char c = marked[at_];
  if (form_.calls == CallSyntax::kTagged) {
    const size_t size = MatchMark(form_, marked, at_, kTagEnd);
    if (size == 0) return State::kBroken;
    starved_ = size == kMore;
    if (starved_) return State::kMore;
    at_ += size;
    return Go(Phase::kDone);
  }
  ++at_;
  if (form_.calls == CallSyntax::kBare) return c == ';' ? Go(Phase::kItem) : State::kBroken;
  if (c == ']') return Go(Phase::kDone);
  whole_end_ = at_;
  return c == ',' ? Go(Phase::kItem) : State::kBroken;
}

// A name, and perhaps an id that tells nothing, up to the mark of the arguments.
CallScanner::State CallScanner::Name(std::string_view marked) {
  for (const char* mark : {kMistralArguments, kMistralId}) {
    const size_t size = MatchMark(form_, marked, at_, mark);
    if (size == 0) continue;
    starved_ = size == kMore;
    if (starved_) return State::kMore;
    at_ += size;
    return EndWord(/*id_follows=*/mark == kMistralId);
  }
  const char c = marked[at_++];
  if (!IsToolNameByte(c) || word_.size() == kMaxToolNameBytes) return State::kBroken;
  word_ += c;
  return State::kMore;
}

CallScanner::State CallScanner::EndWord(bool id_follows) {
  if (phase_ == Phase::kId) {
    if (id_follows) return State::kBroken;
  } else {
    const bool known = std::find(tools_.begin(), tools_.end(), word_) != tools_.end();
    if (!known || calls_.size() == max_calls_) return State::kBroken;
    calls_.push_back({.name = std::exchange(word_, ""), .arguments = {}});
  }
  if (id_follows) return Go(Phase::kId);
  json_.emplace(ChatTemplateLimits::kToolDepth);
  return Go(Phase::kArguments);
}

CallScanner::State CallScanner::Arguments(char c) {
  Call& call = calls_.back();
  const bool begun = !call.arguments.empty();
  if (!begun && IsJsonSpace(c)) return State::kMore;
  if (!json_->Feed(c)) return State::kBroken;
  call.arguments += c;
  if (!json_->done()) return State::kMore;
  return AreArguments(call.arguments) ? Go(Phase::kDone) : State::kBroken;
}

}  // namespace eta
