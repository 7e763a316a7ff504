// eta-eval render: what a chat template makes of chats, and which bytes it wrote itself.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/runtime/program.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/chat/chat_template.h"

namespace eta {
namespace {

constexpr size_t kMaxLineBytes = size_t{32} << 20;
constexpr size_t kMaxLineDepth = 64;

struct RenderCommand {
  std::string template_file;
  ChatTemplate::Tokens tokens;

  void Register(CLI::App& command);
  absl::Status Run() const;
};

void RenderCommand::Register(CLI::App& command) {
  command.add_option(
      "--template", template_file,
      "File of the chat template (Jinja); without it each line brings a \"template\"");
  command.add_option("--bos_token", tokens.bos, "How the vocabulary spells beginning of text");
  command.add_option("--eos_token", tokens.eos, "How the vocabulary spells end of text");
  command.footer(
      "Reads one chat a line from standard input, as JSON: {\"messages\": [{\"role\": ...,\n"
      "\"content\": ..., \"reasoning\": ..., \"name\": ..., \"tool_call_id\": ...,\n"
      "\"tool_calls\": [{\"id\": ..., \"name\": ..., \"arguments_json\": \"{...}\"}]}],\n"
      "\"add_generation_prompt\": true, \"variables_json\": \"{...}\", \"tools\": [{\"name\": "
      "...,\n"
      "\"description\": ..., \"parameters_json\": \"{...}\"}]}. Writes one line for each:\n"
      "{\"text\": ..., \"control\": [[BEGIN, END], ...]}, the bytes that the template itself\n"
      "wrote, or {\"code\": ..., \"error\": ...}.");
}

// A line of input: a chat, and where the command line names none, its template.
struct ChatLine {
  Chat chat;
  std::optional<std::string> source;
};

absl::StatusOr<std::vector<ToolCall>> ParseCalls(const nlohmann::json& list) {
  std::vector<ToolCall> calls;
  for (const nlohmann::json& entry : list) {
    if (!entry.is_object()) return absl::InvalidArgumentError("tool_calls: not objects");
    JsonFields call(entry, "tool_calls[].");
    calls.push_back({.id = call.Has("id") ? call.Text("id") : "",
                     .name = call.Text("name"),
                     .arguments_json = call.Text("arguments_json")});
    RETURN_IF_ERROR(call.Finish());
  }
  return calls;
}

absl::StatusOr<std::vector<Tool>> ParseTools(const nlohmann::json& list) {
  std::vector<Tool> tools;
  for (const nlohmann::json& entry : list) {
    if (!entry.is_object()) return absl::InvalidArgumentError("tools: not objects");
    JsonFields fields(entry, "tools[].");
    Tool& tool = tools.emplace_back();
    tool.name = fields.Text("name");
    if (fields.Has("description")) tool.description = fields.Text("description");
    if (fields.Has("parameters_json")) tool.parameters_json = fields.Text("parameters_json");
    RETURN_IF_ERROR(fields.Finish());
  }
  return tools;
}

absl::StatusOr<ChatLine> ParseLine(const std::string& line) {
  ASSIGN_OR_RETURN(const auto tree, ParseStrictJson("chat", line, kMaxLineBytes, kMaxLineDepth));
  JsonFields fields(tree.root(), "");
  Chat chat;
  const nlohmann::json& messages = fields.Array("messages");
  for (const nlohmann::json& entry : messages) {
    if (!entry.is_object()) return absl::InvalidArgumentError("messages: not objects");
    JsonFields message(entry, "messages[].");
    ChatMessage made{.role = message.Text("role"), .content = message.Text("content")};
    if (message.Has("reasoning")) made.reasoning = message.Text("reasoning");
    if (message.Has("name")) made.name = message.Text("name");
    if (message.Has("tool_call_id")) made.tool_call_id = message.Text("tool_call_id");
    if (message.Has("tool_calls")) {
      ASSIGN_OR_RETURN(made.tool_calls, ParseCalls(message.Array("tool_calls")));
    }
    RETURN_IF_ERROR(message.Finish());
    chat.messages.push_back(std::move(made));
  }
  if (fields.Has("add_generation_prompt")) {
    const nlohmann::json& flag = tree.root()["add_generation_prompt"];
    if (fields.IsNull("add_generation_prompt") || !flag.is_boolean()) {
      fields.Fail("add_generation_prompt", "must be true or false");
    } else {
      chat.add_generation_prompt = flag.get<bool>();
    }
  }
  if (fields.Has("variables_json")) chat.variables_json = fields.Text("variables_json");
  if (fields.Has("tools")) {
    ASSIGN_OR_RETURN(chat.tools, ParseTools(fields.Array("tools")));
  }
  ChatLine parsed{.chat = std::move(chat)};
  if (fields.Has("template")) parsed.source = fields.Text("template");
  RETURN_IF_ERROR(fields.Finish());
  return parsed;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ReadTemplate(const std::string& path,
                                                           const ChatTemplate::Tokens& tokens) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError("--template: cannot be read: " + path);
  const std::string source((std::istreambuf_iterator<char>(file)), {});
  return ChatTemplate::Parse(source, tokens);
}

absl::StatusOr<RenderedChat> RenderLine(const ChatTemplate* common, const ChatLine& line,
                                        const ChatTemplate::Tokens& tokens) {
  if (line.source.has_value() == (common != nullptr)) {
    return absl::InvalidArgumentError("template: either --template or one in each line");
  }
  if (common != nullptr) return common->Render(line.chat);
  ASSIGN_OR_RETURN(const auto own, ChatTemplate::Parse(*line.source, tokens));
  return own->Render(line.chat);
}

nlohmann::json Answer(const absl::StatusOr<RenderedChat>& rendered) {
  if (!rendered.ok()) {
    return {{"code", absl::StatusCodeToString(rendered.status().code())},
            {"error", std::string(rendered.status().message())}};
  }
  nlohmann::json control = nlohmann::json::array();
  for (const ByteRange& range : rendered->control) control.push_back({range.begin, range.end});
  return {{"text", rendered->text}, {"control", std::move(control)}};
}

absl::Status RenderCommand::Run() const {
  std::unique_ptr<ChatTemplate> common;
  if (!template_file.empty()) {
    ASSIGN_OR_RETURN(common, ReadTemplate(template_file, tokens));
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    ASSIGN_OR_RETURN(const auto parsed, ParseLine(line));
    std::printf("%s\n", Answer(RenderLine(common.get(), parsed, tokens)).dump().c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddRenderCommand(CLI::App& app, absl::Status& status) {
  AddCommand<RenderCommand>(app, status, "render", "Renders chats by a chat template");
}

}  // namespace eta
