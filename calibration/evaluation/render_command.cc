// eta-eval render: what a chat template makes of chats, and which bytes it wrote itself.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/commands.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/chat/chat_template.h"

namespace eta {
namespace {

constexpr size_t kMaxLineBytes = size_t{32} << 20;
constexpr size_t kMaxLineDepth = 8;

struct RenderCommand {
  std::string template_file;
  ChatTemplate::Tokens tokens;

  void Register(CLI::App& command);
  absl::Status Run() const;
};

void RenderCommand::Register(CLI::App& command) {
  command.add_option("--template", template_file, "File of the chat template (Jinja)")->required();
  command.add_option("--bos_token", tokens.bos, "How the vocabulary spells beginning of text");
  command.add_option("--eos_token", tokens.eos, "How the vocabulary spells end of text");
  command.footer(
      "Reads one chat a line from standard input, as JSON: {\"messages\": [{\"role\": ...,\n"
      "\"content\": ..., \"name\": ..., \"tool_call_id\": ...}], \"add_generation_prompt\": true,\n"
      "\"variables_json\": \"{...}\"}. Writes one line for each: {\"text\": ..., \"control\":\n"
      "[[BEGIN, END], ...]}, the bytes that the template itself wrote, or {\"code\": ...,\n"
      "\"error\": ...}.");
}

absl::StatusOr<Chat> ParseChat(const std::string& line) {
  const auto tree = ParseStrictJson("chat", line, kMaxLineBytes, kMaxLineDepth);
  if (!tree.ok()) return tree.status();
  JsonFields fields(tree->root(), "");
  Chat chat;
  const nlohmann::json& messages = fields.Array("messages");
  for (const nlohmann::json& entry : messages) {
    if (!entry.is_object()) return absl::InvalidArgumentError("messages: not objects");
    JsonFields message(entry, "messages[].");
    ChatMessage made{.role = message.Text("role"), .content = message.Text("content")};
    if (message.Has("name")) made.name = message.Text("name");
    if (message.Has("tool_call_id")) made.tool_call_id = message.Text("tool_call_id");
    RETURN_IF_ERROR(message.Finish());
    chat.messages.push_back(std::move(made));
  }
  if (fields.Has("add_generation_prompt")) {
    chat.add_generation_prompt = fields.Integer("add_generation_prompt", 0, 1) != 0;
  }
  if (fields.Has("variables_json")) chat.variables_json = fields.Text("variables_json");
  RETURN_IF_ERROR(fields.Finish());
  return chat;
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
  std::ifstream file(template_file, std::ios::binary);
  if (!file) return absl::NotFoundError("--template: cannot be read: " + template_file);
  const std::string source((std::istreambuf_iterator<char>(file)), {});
  const auto made = ChatTemplate::Parse(source, tokens);
  if (!made.ok()) return made.status();
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto chat = ParseChat(line);
    if (!chat.ok()) return chat.status();
    std::printf("%s\n", Answer((*made)->Render(*chat)).dump().c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddRenderCommand(CLI::App& app, absl::Status& status) {
  auto command = std::make_shared<RenderCommand>();
  CLI::App* const sub = app.add_subcommand("render", "Renders chats by a chat template");
  command->Register(*sub);
  sub->callback([command, &status] { status = command->Run(); });
}

}  // namespace eta
