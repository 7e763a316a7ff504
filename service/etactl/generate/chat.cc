#include "service/etactl/generate/chat.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "service/etactl/connection.h"
#include "service/etactl/error.h"
#include "service/etactl/generate/answer_call.h"
#include "service/etactl/generate/chat_history.h"
#include "service/etactl/generate/chat_tools.h"
#include "service/etactl/input.h"
#include "service/etactl/view/terminal.h"

namespace eta::ctl {
namespace {

constexpr char kHelp[] =
    "Each line is a message as it stands; the model sees all that were said before it.\n"
    "  /system TEXT   set the system prompt; without TEXT there is none\n"
    "  /clear         forget what was said, but not the system prompt\n"
    "  /tool ID TEXT  what the call ID of a tool gives; the model goes on once all have\n"
    "  /help          show this\n"
    "Ctrl-C stops an answer, Ctrl-D ends the chat. A message that begins with / is typed with "
    "//.\n";

class ChatSession {
 public:
  ChatSession(const ServerFlags& server, const ChatFlags& flags, v1::GenerateRequest request,
              ChatHistory history)
      : flags_(flags),
        request_(std::move(request)),
        history_(std::move(history)),
        stub_(v1::EtaService::NewStub(Connect(server))),
        person_(IsTerminal(STDIN_FILENO)) {}

  // Sends messages that are given.
  int Say(const std::vector<std::string>& messages) {
    for (const std::string& message : messages) {
      if (const int code = Send(message); code != kOk) return code;
    }
    return kOk;
  }

  // Sends lines of standard input. A person may go on after an answer that failed.
  int Listen() {
    for (std::string line; Ask(line);) {
      const int code = Take(ReadChatLine(line));
      if (code != kOk && !(person_ && code != kLocalError)) return code;
    }
    return kOk;
  }

 private:
  bool Ask(std::string& line) {
    if (person_) {
      std::fputs("> ", stderr);
      std::fflush(stderr);
    }
    if (std::getline(std::cin, line)) return true;
    if (person_) std::fputc('\n', stderr);
    return false;
  }

  int Take(const ChatLine& line) {
    switch (line.kind) {
      case ChatLine::Kind::kNothing:
        return kOk;
      case ChatLine::Kind::kMessage:
        return Send(line.text);
      case ChatLine::Kind::kClear:
        history_.Clear();
        return Keep();
      case ChatLine::Kind::kSystem:
        history_.SetSystem(line.text);
        return Keep();
      case ChatLine::Kind::kTool:
        return TakeResult(line.text);
      case ChatLine::Kind::kHelp:
        std::fputs(kHelp, stderr);
        return kOk;
      case ChatLine::Kind::kUnknown:
        break;
    }
    std::fprintf(stderr, "etactl: no such command: %s (see /help)\n",
                 WithoutControls(line.text).c_str());
    return kUsage;
  }

  int Send(const std::string& message) {
    history_.Add(v1::CHAT_ROLE_USER, message);
    return Answer();
  }

  // "ID TEXT" of a call that has no result yet.
  int TakeResult(const std::string& text) {
    const size_t blank = std::min(text.find_first_of(" \t"), text.size());
    const std::string id = text.substr(0, blank);
    const std::vector<v1::ToolCall> open = history_.OpenCalls();
    const auto call = std::find_if(open.begin(), open.end(),
                                   [&](const v1::ToolCall& one) { return one.id() == id; });
    if (call == open.end()) {
      std::fprintf(stderr, "etactl: no call %s waits for a result\n", WithoutControls(id).c_str());
      return kUsage;
    }
    v1::ChatMessage result;
    result.set_role(v1::CHAT_ROLE_TOOL);
    result.set_text(std::string(absl::StripAsciiWhitespace(text.substr(blank))));
    result.set_name(call->name());
    result.set_tool_call_id(id);
    history_.Add(std::move(result));
    return open.size() == 1 ? Answer() : Keep();
  }

  // Of all that was said.
  int Answer() {
    *request_.mutable_chat()->mutable_messages() = history_.chat().messages();
    AnswerDisplay display(flags_.answer);
    const AnswerEnd end =
        AwaitAnswer(*stub_, request_, flags_.answer.deadline_seconds, interrupt_, display);
    // What a person has stopped was said all the same.
    if (end.status.ok() || (person_ && end.interrupted && end.written)) {
      v1::ChatMessage answer;
      answer.set_role(v1::CHAT_ROLE_ASSISTANT);
      answer.set_text(display.text());
      if (display.finished()) *answer.mutable_tool_calls() = display.finished()->tool_calls();
      // Beside text and calls the template of gpt-oss refuses it.
      const bool has_room = answer.text().empty() || answer.tool_calls().empty();
      if (has_room && !display.reasoning().empty()) answer.set_reasoning(display.reasoning());
      history_.Add(std::move(answer));
      return Keep();
    }
    history_.DropLast();
    return ReportEnd(end, flags_.answer.json);
  }

  int Keep() {
    if (flags_.history.empty()) return kOk;
    const absl::Status written = history_.Write(flags_.history);
    if (written.ok()) return kOk;
    std::fprintf(stderr, "etactl: %s\n", std::string(written.message()).c_str());
    return kLocalError;
  }

  const ChatFlags& flags_;
  v1::GenerateRequest request_;  // without messages, those of the newest call
  ChatHistory history_;
  CancelOnInterrupt interrupt_;  // before any other thread
  const std::unique_ptr<v1::EtaService::Stub> stub_;
  const bool person_;
};

}  // namespace

CLI::App* AddChatCommand(CLI::App& app, ChatFlags* flags) {
  CLI::App* command = app.add_subcommand(
      "chat", "Talk to the model: lines of standard input, or the messages given");
  command->add_option("MESSAGE", flags->message,
                      "A message, which is answered; '-' or none: each line of stdin is one");
  command->add_option("--system", flags->system, "System prompt of the chat");
  command
      ->add_option("--message", flags->messages,
                   "A further message; may be repeated, each is answered before the next is sent")
      ->allow_extra_args(false);
  command->add_option(
      "--history", flags->history,
      "File of the chat, a JSON object with role, content and, where the message "
      "has them, reasoning_content, name, tool_call_id and tool_calls per line: it is "
      "continued, and kept after each answer");
  command->add_option("--variables", flags->variables,
                      "Further variables of the chat template, as one JSON object");
  command->add_option("--tools", flags->tools,
                      "File of what the model may call: a JSON list as OpenAI's `tools`. Calls are "
                      "shown a line each, and answered with /tool");
  command->add_option("--tool_choice", flags->tool_choice,
                      "auto, none, required, or the name of the tool to call");
  AddAnswerOptions(command, &flags->answer);
  return command;
}

ChatLine ReadChatLine(const std::string& line) {
  std::string text = line;
  if (!text.empty() && text.back() == '\r') text.pop_back();
  if (absl::StripAsciiWhitespace(text).empty()) return {};
  if (text[0] != '/') return {.kind = ChatLine::Kind::kMessage, .text = text};
  if (text.rfind("//", 0) == 0) return {.kind = ChatLine::Kind::kMessage, .text = text.substr(1)};
  const size_t space = text.find_first_of(" \t");
  const std::string command = text.substr(0, space);
  const std::string rest =
      space == std::string::npos ? "" : std::string(absl::StripAsciiWhitespace(text.substr(space)));
  if (command == "/system") return {.kind = ChatLine::Kind::kSystem, .text = rest};
  if (command == "/clear" && rest.empty()) return {.kind = ChatLine::Kind::kClear};
  if (command == "/tool" && !rest.empty()) return {.kind = ChatLine::Kind::kTool, .text = rest};
  if (command == "/help") return {.kind = ChatLine::Kind::kHelp};
  return {.kind = ChatLine::Kind::kUnknown, .text = command};
}

int RunChat(const ServerFlags& server, const ChatFlags& flags) {
  const auto refuse = [](const absl::Status& status) {
    std::fprintf(stderr, "etactl: %s\n", std::string(status.message()).c_str());
    return kUsage;
  };
  v1::GenerateRequest request;
  if (const absl::Status filled = FillAnswer(flags.answer, &request); !filled.ok()) {
    return refuse(filled);
  }
  if (!flags.variables.empty()) request.mutable_chat()->set_variables(flags.variables);
  if (!flags.tools.empty()) {
    if (const absl::Status read = ReadTools(flags.tools, request.mutable_chat()); !read.ok()) {
      return refuse(read);
    }
  }
  if (!flags.tool_choice.empty()) {
    *request.mutable_chat()->mutable_tool_choice() = ToolChoiceOf(flags.tool_choice);
  }
  absl::StatusOr<ChatHistory> history = ChatHistory();
  if (!flags.history.empty()) history = ChatHistory::Read(flags.history);
  if (!history.ok()) return refuse(history.status());
  if (flags.system) history->SetSystem(*flags.system);
  std::vector<std::string> messages = flags.messages;
  if (!flags.message.empty() && flags.message != kStandardInput) {
    messages.insert(messages.begin(), flags.message);
  }
  ChatSession session(server, flags, std::move(request), *std::move(history));
  return messages.empty() ? session.Listen() : session.Say(messages);
}

}  // namespace eta::ctl
