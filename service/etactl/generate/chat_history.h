// The messages of a chat so far, in memory and in a file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eta/v1/generate.pb.h"

namespace eta::ctl {

class ChatHistory {
 public:
  // Reads a file with one JSON object per line: `role` (system, user, assistant or tool) and
  // `content`. Empty if there is no such file. INVALID_ARGUMENT, with a sentence for the user.
  static absl::StatusOr<ChatHistory> Read(const std::string& file);
  // Replaces the file by what Read reads. INVALID_ARGUMENT, with a sentence for the user.
  absl::Status Write(const std::string& file) const;

  // The system prompt stands first; empty: there is none.
  void SetSystem(const std::string& text);
  void Add(v1::ChatRole role, const std::string& text);
  void DropLast();
  // Forgets all but the system prompt.
  void Clear();

  const v1::Chat& chat() const { return chat_; }

 private:
  bool has_system() const;

  v1::Chat chat_;
};

}  // namespace eta::ctl
