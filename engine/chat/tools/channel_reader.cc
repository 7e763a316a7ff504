// lint: untrusted-input, fuzz-covered
#include "engine/chat/tools/channel_reader.h"

#include <algorithm>
#include <utility>

#include "engine/chat/chat_template.h"
#include "engine/chat/tools/call_id.h"
#include "engine/chat/tools/call_object.h"
#include "engine/chat/tools/marked_text.h"

namespace eta {
namespace {

constexpr std::string_view kTo = " to=";
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kAnalysis = "analysis";
// A longer one is none.
constexpr size_t kMaxHeaderBytes = 1024;

constexpr std::string_view kBeginnings[] = {kMessageStart, kMessageChannel, kMessageText};
constexpr std::string_view kEnds[] = {kMessageEnd, kMessageCall, kMessageReturn, kMessageStart,
                                      kMessageChannel};

bool IsBlank(std::string_view text) {
  return std::ranges::all_of(text, IsJsonSpace);
}

// The word behind `before` in a header; empty: there is none.
std::string_view WordBehind(std::string_view before, std::string_view header) {
  const size_t at = header.find(before);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + before.size());
  const auto end = std::ranges::find_if(
      header, [](char c) { return IsJsonSpace(c) || c == '<' || c == kMarkByte; });
  return header.substr(0, static_cast<size_t>(end - header.begin()));
}

}  // namespace

AnswerPart ChannelReader::Push(std::string_view text, std::span<const TextMark> marks) {
  AnswerPart part;
  AppendMarked(options_.form, text, marks, held_);
  while (!held_.empty() && Step(part)) {
  }
  return part;
}

AnswerPart ChannelReader::Finish() {
  AnswerPart part;
  // What may have become a mark has not.
  const bool is_text = state_ == State::kBody || state_ == State::kStart;
  if (is_text && !held_.empty()) Tell(PlainText(held_), part);
  held_.clear();
  EndMessage(part);
  return part;
}

bool ChannelReader::Step(AnswerPart& part) {
  switch (state_) {
    case State::kStart:
    case State::kBetween:
      return Start();
    case State::kHeader:
      return Header(part);
    case State::kBody:
      break;
  }
  return Body(part);
}

// A mark begins a message, and so does the name of who it is to. White space between messages is
// nothing.
bool ChannelReader::Start() {
  const Found found = FindAny(kBeginnings);
  const std::string_view before = std::string_view(held_).substr(0, found.at);
  if (IsBlank(before) && (state_ == State::kBetween || before.empty())) {
    if (found.at == held_.size() || found.bytes == kMore) return false;
    held_.erase(0, found.at + (found.mark == kMessageStart ? found.bytes : 0));
    state_ = State::kHeader;
    return true;
  }
  const std::string_view first = before.substr(0, kTo.size());
  if (state_ == State::kStart && kTo.starts_with(first)) {
    if (first.size() < kTo.size() && found.at == held_.size()) return false;
    if (first == kTo) {
      state_ = State::kHeader;
      return true;
    }
  }
  BeginMessage({});
  return true;
}

bool ChannelReader::Header(AnswerPart& part) {
  const size_t at = FindMark(options_.form, held_, 0, kMessageText);
  const size_t bytes = MatchMark(options_.form, held_, at, kMessageText);
  if (at > kMaxHeaderBytes) {
    BeginMessage({});
    const size_t cut = kMaxHeaderBytes + (held_[kMaxHeaderBytes - 1] == kMarkByte ? 1 : 0);
    Tell(PlainText(std::string_view(held_).substr(0, cut)), part);
    held_.erase(0, cut);
    return true;
  }
  if (bytes == kMore) return false;
  std::string header;
  for (size_t i = 0; i < at; ++i) {
    if (held_[i] == kMarkByte) {
      header += options_.form.marks[static_cast<unsigned char>(held_[++i])].text;
    } else {
      header += held_[i];
    }
  }
  held_.erase(0, at + bytes);
  BeginMessage(header);
  return true;
}

void ChannelReader::BeginMessage(std::string_view header) {
  state_ = State::kBody;
  begun_ = false;
  std::string_view to = WordBehind(kTo, header);
  const bool analysis = WordBehind(kMessageChannel, header) == kAnalysis;
  kind_ = analysis && options_.tell_reasoning ? Kind::kReasoning : Kind::kText;
  if (!to.starts_with(kFunctions) || calls_.size() >= kMaxToolCalls) return;
  to.remove_prefix(kFunctions.size());
  if (std::ranges::find(options_.tools, to) == options_.tools.end()) return;
  kind_ = Kind::kCall;
  tool_ = to;
  body_.clear();
  arguments_.clear();
  json_.emplace(ChatTemplateLimits::kToolDepth);
}

bool ChannelReader::Body(AnswerPart& part) {
  const Found found = FindAny(kEnds);
  Tell(PlainText(std::string_view(held_).substr(0, found.at)), part);
  held_.erase(0, found.at);
  if (held_.empty() || found.bytes == kMore) return false;
  EndMessage(part);
  const bool begins = found.mark == kMessageStart || found.mark == kMessageChannel;
  if (!begins) held_.erase(0, found.bytes);
  state_ = State::kBetween;
  return true;
}

void ChannelReader::EndMessage(AnswerPart& part) {
  if (state_ == State::kBody && kind_ == Kind::kCall) {
    if (json_->done() && AreArguments(arguments_)) {
      calls_.push_back({.id = id_, .name = tool_, .arguments_json = arguments_});
    } else {
      Withdraw(part);
    }
  }
  if (kind_ != Kind::kCall && begun_) told_[static_cast<size_t>(kind_)] = true;
  kind_ = Kind::kText;
  begun_ = false;
}

void ChannelReader::Tell(std::string_view plain, AnswerPart& part) {
  if (plain.empty()) return;
  if (kind_ == Kind::kCall) return TellCall(plain, part);
  std::string& out = kind_ == Kind::kReasoning ? part.reasoning : part.text;
  if (!begun_ && told_[static_cast<size_t>(kind_)]) out += '\n';
  begun_ = true;
  out += plain;
}

void ChannelReader::TellCall(std::string_view plain, AnswerPart& part) {
  body_ += plain;
  std::string added;
  bool breaks = false;
  for (size_t i = 0; i < plain.size() && !breaks; ++i) {
    const char c = plain[i];
    if (IsJsonSpace(c) && (json_->done() || (arguments_.empty() && added.empty()))) continue;
    breaks = json_->done() || !json_->Feed(c);
    if (!breaks) added += c;
  }
  if (!added.empty()) {
    CallDelta& delta = part.calls.emplace_back();
    if (arguments_.empty()) {
      id_ = CallId(options_.seed, options_.prompt_tokens, next_index_, options_.form.short_ids);
      delta.id = id_;
      delta.name = tool_;
      ++next_index_;
    }
    delta.index = next_index_ - 1;
    delta.arguments = added;
    arguments_ += added;
  }
  if (breaks) Withdraw(part);
}

// The message is text.
void ChannelReader::Withdraw(AnswerPart& part) {
  if (!arguments_.empty()) {
    CallDelta& delta = part.calls.emplace_back();
    delta.index = next_index_ - 1;
    delta.withdrawn = true;
  }
  kind_ = Kind::kText;
  Tell(body_, part);
}

ChannelReader::Found ChannelReader::FindAny(std::span<const std::string_view> marks) const {
  Found found = {.at = held_.size(), .bytes = kMore, .mark = {}};
  for (const std::string_view mark : marks) {
    const size_t at = FindMark(options_.form, held_, 0, mark);
    if (at >= found.at) continue;
    found = {.at = at, .bytes = MatchMark(options_.form, held_, at, mark), .mark = mark};
  }
  return found;
}

}  // namespace eta
