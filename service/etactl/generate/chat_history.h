// The messages of a chat so far, in memory and in a file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eta/v1/generate.pb.h"

namespace eta::ctl {

class ChatHistory {
 public:
  // Reads a file with one JSON object per line: `role` (system, user, assistant or tool), `content`
  // and, where the message has them, `reasoning_content`, `name`, `tool_call_id` and `tool_calls`
  // (chat_tools.h), beside which content may be null. Other fields are the writer's own: they are
  // not sent. Empty if there is no such file. INVALID_ARGUMENT, with a sentence for the user that
  // names the line, for what is not such an object, and for `function_call`, which the API cannot
  // carry: without it the chat would be another one.
  static absl::StatusOr<ChatHistory> Read(const std::string& file);
  // Replaces the file by what Read reads, whole or not at all (output.h). Messages that were read
  // stand there byte for byte. INVALID_ARGUMENT, with a sentence for the user.
  absl::Status Write(const std::string& file) const;

  // The system prompt stands first; empty: there is none.
  void SetSystem(const std::string& text);
  void Add(v1::ChatRole role, const std::string& text);
  void Add(v1::ChatMessage message);
  void DropLast();
  // Forgets all but the system prompt.
  void Clear();

  // Calls of the newest answer that no message behind it answers.
  std::vector<v1::ToolCall> OpenCalls() const;

  const v1::Chat& chat() const { return chat_; }

 private:
  bool has_system() const;

  v1::Chat chat_;
  std::vector<std::string> lines_;  // of the file, one for each message
};

}  // namespace eta::ctl
