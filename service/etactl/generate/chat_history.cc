#include "service/etactl/generate/chat_history.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "service/etactl/generate/chat_tools.h"
#include "service/etactl/input.h"
#include "service/etactl/output.h"

namespace eta::ctl {
namespace {

using Json = nlohmann::json;

constexpr std::pair<const char*, v1::ChatRole> kRoles[] = {{"system", v1::CHAT_ROLE_SYSTEM},
                                                           {"user", v1::CHAT_ROLE_USER},
                                                           {"assistant", v1::CHAT_ROLE_ASSISTANT},
                                                           {"tool", v1::CHAT_ROLE_TOOL}};

constexpr char kReasoning[] = "reasoning_content";

std::optional<v1::ChatRole> RoleOf(const std::string& name) {
  for (const auto& [known, role] : kRoles) {
    if (name == known) return role;
  }
  return std::nullopt;
}

const char* NameOf(v1::ChatRole role) {
  for (const auto& [name, known] : kRoles) {
    if (role == known) return name;
  }
  return "";
}

// The fields of a message, filled in one after the other; the first error stands.
class LineReader {
 public:
  explicit LineReader(const Json& object) : object_(object) {}

  // The text of a field; empty: it is not there, or null.
  std::string Text(const char* field) {
    const auto found = object_.find(field);
    if (found == object_.end() || found->is_null()) return "";
    if (found->is_string()) return found->get<std::string>();
    if (error_.empty()) error_ = absl::StrCat(field, " is not a string");
    return "";
  }
  void RefuseCalls(const char* field) {
    const auto found = object_.find(field);
    if (found == object_.end() || found->is_null() || found->empty() || !error_.empty()) return;
    error_ = absl::StrCat(field, " cannot be sent, and without it the chat would be another one");
  }
  const std::string& error() const { return error_; }

 private:
  const Json& object_;
  std::string error_;
};

absl::StatusOr<v1::ChatMessage> MessageOf(const std::string& line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::InvalidArgumentError("not a JSON object with role and content");
  }
  LineReader reader(object);
  reader.RefuseCalls("function_call");
  const auto role = RoleOf(reader.Text("role"));
  const std::string content = reader.Text("content");
  const std::string name = reader.Text("name");
  const std::string tool_call_id = reader.Text("tool_call_id");
  const std::string reasoning = reader.Text(kReasoning);
  if (!reader.error().empty()) return absl::InvalidArgumentError(reader.error());
  v1::ChatMessage message;
  if (object.contains("tool_calls") && !object["tool_calls"].is_null()) {
    RETURN_IF_ERROR(ReadCalls(object["tool_calls"], &message));
  }
  const bool has_content = object.contains("content") && !object["content"].is_null();
  if (!role || (!has_content && message.tool_calls().empty())) {
    return absl::InvalidArgumentError("not a JSON object with role and content");
  }
  message.set_role(*role);
  if (has_content) message.set_text(content);
  if (object.contains("name") && !object["name"].is_null()) message.set_name(name);
  if (object.contains("tool_call_id") && !object["tool_call_id"].is_null()) {
    message.set_tool_call_id(tool_call_id);
  }
  if (object.contains(kReasoning) && !object[kReasoning].is_null()) {
    message.set_reasoning(reasoning);
  }
  return message;
}

std::string LineOf(const v1::ChatMessage& message) {
  nlohmann::ordered_json object = {{"role", NameOf(message.role())}, {"content", message.text()}};
  if (message.has_reasoning()) object[kReasoning] = message.reasoning();
  if (message.has_name()) object["name"] = message.name();
  if (message.has_tool_call_id()) object["tool_call_id"] = message.tool_call_id();
  if (message.tool_calls_size() > 0) object["tool_calls"] = CallList(message);
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<ChatHistory> ChatHistory::Read(const std::string& file) {
  ChatHistory history;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return history;
  ASSIGN_OR_RETURN(const std::string content, ReadAll(file));
  std::istringstream lines(content);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto message = MessageOf(line);
    if (!message.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": ", std::string(message.status().message())));
    }
    *history.chat_.add_messages() = *std::move(message);
    history.lines_.push_back(std::move(line));
  }
  return history;
}

absl::Status ChatHistory::Write(const std::string& file) const {
  std::string text;
  for (const std::string& line : lines_) absl::StrAppend(&text, line, "\n");
  return ReplaceFile(file, text);
}

bool ChatHistory::has_system() const {
  return chat_.messages_size() > 0 && chat_.messages(0).role() == v1::CHAT_ROLE_SYSTEM;
}

void ChatHistory::SetSystem(const std::string& text) {
  if (has_system() && chat_.messages(0).text() == text && !text.empty()) return;
  ChatHistory others;
  if (!text.empty()) others.Add(v1::CHAT_ROLE_SYSTEM, text);
  for (int i = has_system() ? 1 : 0; i < chat_.messages_size(); ++i) {
    *others.chat_.add_messages() = std::move(*chat_.mutable_messages(i));
    others.lines_.push_back(std::move(lines_[i]));
  }
  *this = std::move(others);
}

void ChatHistory::Add(v1::ChatRole role, const std::string& text) {
  v1::ChatMessage message;
  message.set_role(role);
  message.set_text(text);
  Add(std::move(message));
}

void ChatHistory::Add(v1::ChatMessage message) {
  lines_.push_back(LineOf(message));
  *chat_.add_messages() = std::move(message);
}

std::vector<v1::ToolCall> ChatHistory::OpenCalls() const {
  std::vector<v1::ToolCall> open;
  for (const v1::ChatMessage& message : chat_.messages()) {
    if (message.role() != v1::CHAT_ROLE_TOOL) {
      open.assign(message.tool_calls().begin(), message.tool_calls().end());
      continue;
    }
    std::erase_if(open,
                  [&](const v1::ToolCall& call) { return call.id() == message.tool_call_id(); });
  }
  return open;
}

void ChatHistory::DropLast() {
  chat_.mutable_messages()->RemoveLast();
  lines_.pop_back();
}

void ChatHistory::Clear() {
  while (chat_.messages_size() > (has_system() ? 1 : 0)) DropLast();
}

}  // namespace eta::ctl
