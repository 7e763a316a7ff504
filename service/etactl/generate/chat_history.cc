#include "service/etactl/generate/chat_history.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/etactl/input.h"

namespace eta::ctl {
namespace {

using Json = nlohmann::json;

constexpr std::pair<const char*, v1::ChatRole> kRoles[] = {{"system", v1::CHAT_ROLE_SYSTEM},
                                                           {"user", v1::CHAT_ROLE_USER},
                                                           {"assistant", v1::CHAT_ROLE_ASSISTANT},
                                                           {"tool", v1::CHAT_ROLE_TOOL}};

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

std::string TextOf(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

absl::StatusOr<ChatHistory> ChatHistory::Read(const std::string& file) {
  ChatHistory history;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return history;
  const absl::StatusOr<std::string> content = ReadAll(file);
  if (!content.ok()) return content.status();
  std::istringstream lines(*content);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto role = object.is_object() ? RoleOf(TextOf(object, "role")) : std::nullopt;
    if (!role || !object.contains("content") || !object["content"].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": not a JSON object with role and content"));
    }
    history.Add(*role, TextOf(object, "content"));
  }
  return history;
}

absl::Status ChatHistory::Write(const std::string& file) const {
  const std::string next = file + ".new";
  std::ofstream out(next, std::ios::binary | std::ios::trunc);
  for (const v1::ChatMessage& message : chat_.messages()) {
    const Json object = {{"role", NameOf(message.role())}, {"content", message.text()}};
    out << object.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
  out.close();
  if (out && std::rename(next.c_str(), file.c_str()) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", file));
}

bool ChatHistory::has_system() const {
  return chat_.messages_size() > 0 && chat_.messages(0).role() == v1::CHAT_ROLE_SYSTEM;
}

void ChatHistory::SetSystem(const std::string& text) {
  v1::Chat others;
  if (!text.empty()) {
    v1::ChatMessage* system = others.add_messages();
    system->set_role(v1::CHAT_ROLE_SYSTEM);
    system->set_text(text);
  }
  for (int i = has_system() ? 1 : 0; i < chat_.messages_size(); ++i) {
    *others.add_messages() = chat_.messages(i);
  }
  chat_ = std::move(others);
}

void ChatHistory::Add(v1::ChatRole role, const std::string& text) {
  v1::ChatMessage* message = chat_.add_messages();
  message->set_role(role);
  message->set_text(text);
}

void ChatHistory::DropLast() {
  chat_.mutable_messages()->RemoveLast();
}

void ChatHistory::Clear() {
  while (chat_.messages_size() > (has_system() ? 1 : 0)) DropLast();
}

}  // namespace eta::ctl
