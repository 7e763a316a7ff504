// `etactl chat`: a conversation with the model, message by message.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "service/etactl/generate/request.h"
#include "service/etactl/server.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

struct ChatFlags {
  GenerateFlags answer;  // how to answer; its prompt is not used
  std::optional<std::string> system;
  std::string message;  // sent first; "-" or empty: none
  // Sent one after the other. Without a message here or above: lines of standard input.
  std::vector<std::string> messages;
  std::string history;      // a file; empty: none
  std::string variables;    // a JSON object for the template; empty: none
  std::string tools;        // a file; empty: none
  std::string tool_choice;  // auto, none, required, a tool's name; empty: the server's default
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddChatCommand(CLI::App& app, ChatFlags* flags);

// What a line of standard input asks for.
struct ChatLine {
  enum class Kind { kMessage, kNothing, kClear, kSystem, kTool, kHelp, kUnknown };
  Kind kind = Kind::kNothing;
  // Of the message, of the system prompt, the id of a call and its result, or the unknown command.
  std::string text;
};
// A line that begins with "/" is a command; "//" begins a message with one "/". Every other line is
// a message as it stands, but for a carriage return at its end; of blanks alone it is nothing.
ChatLine ReadChatLine(const std::string& line);

// Returns the exit code of the process.
int RunChat(const ServerFlags& server, const ChatFlags& flags);

}  // namespace eta::ctl
