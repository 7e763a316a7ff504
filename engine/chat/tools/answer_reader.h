// Reads an answer as it comes: tells its reasoning, its text and its calls of tools apart.
//
// A call is told as soon as its tool is known and its arguments begin, and goes on as they come.
// Where it breaks, or the answer ends in its middle, it is withdrawn, and what it was made of is
// text; calls before it in a list that the end cut stay calls. So nothing gets lost but marks and
// the white space beside them. However the answer is cut, what comes out is the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/text_mark.h"
#include "engine/chat/chat.h"
#include "engine/chat/tools/answer_part.h"
#include "engine/chat/tools/call_scanner.h"
#include "engine/chat/tools/channel_reader.h"

namespace eta {

// One answer. Not thread-safe.
class AnswerReader {
 public:
  using Options = AnswerReaderOptions;

  explicit AnswerReader(Options options);

  // What became certain with the next part of the answer: UTF-8, and the special tokens of
  // `form.marks` in it.
  AnswerPart Push(std::string_view text, std::span<const TextMark> marks);
  // What is still held back: no more will come.
  AnswerPart Finish();

  // Those that were not withdrawn, as far as they are whole.
  const std::vector<ToolCall>& calls() const { return channels_ ? channels_->calls() : calls_; }

 private:
  enum class State : uint8_t { kStart, kReasoning, kReasoned, kText, kCall, kPlain };

  // Moves on in what is held. False: it needs more.
  bool Step(AnswerPart& part);
  bool Start(AnswerPart& part);
  bool Reasoning(AnswerPart& part);
  bool Reasoned();
  bool Text(AnswerPart& part);
  bool Call(AnswerPart& part);
  bool Plain(AnswerPart& part);
  void BeginCall(size_t at);
  // Its first `kept` calls stay calls.
  void BreakCall(size_t kept, AnswerPart& part);
  void TellCalls(AnswerPart& part);
  void KeepCalls();
  // Moves the first `bytes` of what is held to a text.
  void Release(size_t bytes, std::string& text);
  State TextState() const;
  std::string_view CallMark() const;

  const Options options_;
  std::optional<ChannelReader> channels_;  // reads all, where answers have channels
  State state_;
  std::string held_;  // marked_text.h
  size_t call_at_ = 0;
  std::optional<CallScanner> scanner_;
  size_t told_ = 0;        // calls of the scanner's
  size_t told_bytes_ = 0;  // of the arguments of the newest
  bool reasoning_told_ = false;
  bool after_call_ = false;
  int32_t next_index_ = 0;
  std::vector<ToolCall> pending_;  // told and not whole yet
  std::vector<ToolCall> calls_;
};

}  // namespace eta
