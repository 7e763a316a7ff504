// `etactl chat`: a conversation with the model, message by message.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "service/etactl/generate/request.h"

namespace eta::ctl {

struct ChatFlags {
  GenerateFlags answer;  // how to answer; its prompt is not used
  std::optional<std::string> system;
  std::vector<std::string> messages;  // sent one after the other; none: lines of standard input
  std::string history;                // a file; empty: none
  std::string variables;              // a JSON object for the template; empty: none
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddChatCommand(CLI::App& app, ChatFlags* flags);

// What a line of standard input asks for.
struct ChatLine {
  enum class Kind { kMessage, kNothing, kClear, kSystem, kHelp, kUnknown };
  Kind kind = Kind::kNothing;
  std::string text;  // of the message, of the system prompt, or the unknown command
};
// A line that begins with "/" is a command; "//" begins a message with one "/".
ChatLine ReadChatLine(const std::string& line);

// Returns the exit code of the process.
int RunChat(const ChatFlags& flags);

}  // namespace eta::ctl
