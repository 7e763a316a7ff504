// Reads answers in OpenAI's Harmony format: messages, each with a channel. Messages to a tool are
// calls, those of the channel "analysis" reasoning, all others text.
//
//   <|channel|>analysis<|message|>R<|end|><|start|>assistant<|channel|>final<|message|>T<|return|>
//   <|channel|>commentary to=functions.N <|constrain|>json<|message|>{...}<|call|>
//
// The prompt has begun the first message. What stands between a message's beginning and its text
// is lost with the marks; messages of one kind have a line end between them. What has no such form
// is text. Otherwise as of AnswerReader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/text_mark.h"
#include "engine/chat/chat.h"
#include "engine/chat/tools/answer_part.h"
#include "engine/chat/tools/json_cursor.h"

namespace eta {

// One answer. Not thread-safe.
class ChannelReader {
 public:
  explicit ChannelReader(AnswerReaderOptions options) : options_(std::move(options)) {}

  AnswerPart Push(std::string_view text, std::span<const TextMark> marks);
  AnswerPart Finish();
  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  enum class State : uint8_t { kStart, kHeader, kBody, kBetween };
  enum class Kind : uint8_t { kText, kReasoning, kCall };
  // Where one of several marks begins, and which: `bytes` is kMore where it may become one.
  struct Found {
    size_t at = 0;
    size_t bytes = 0;
    std::string_view mark;
  };

  // Moves on in what is held. False: it needs more.
  bool Step(AnswerPart& part);
  bool Start();
  bool Header(AnswerPart& part);
  bool Body(AnswerPart& part);
  Found FindAny(std::span<const std::string_view> marks) const;
  void BeginMessage(std::string_view header);
  void EndMessage(AnswerPart& part);
  // Adds to the message.
  void Tell(std::string_view plain, AnswerPart& part);
  void TellCall(std::string_view plain, AnswerPart& part);
  void Withdraw(AnswerPart& part);

  const AnswerReaderOptions options_;
  State state_ = State::kStart;
  Kind kind_ = Kind::kText;
  bool begun_ = false;  // the message has text
  bool told_[2] = {};   // of kText and kReasoning: an earlier message has
  std::string held_;    // marked_text.h
  std::string tool_;    // of a call
  std::string body_;    // likewise, all of it
  std::optional<JsonCursor> json_;
  std::string arguments_;
  int32_t next_index_ = 0;
  std::string id_;
  std::vector<ToolCall> calls_;
};

}  // namespace eta
