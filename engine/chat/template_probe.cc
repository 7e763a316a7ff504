// lint: untrusted-input, fuzz-covered
#include "engine/chat/template_probe.h"

#include <initializer_list>
#include <set>
#include <utility>

#include "engine/base/byte_range.h"
#include "engine/base/error.h"
#include "engine/chat/chat.h"

namespace eta {
namespace {

using Roles = std::initializer_list<const char*>;

// Some templates want a user first, or that user and assistant take turns; others know no system
// or no tool. What one of these refuses, another shows.
constexpr Roles kProbedRoles[] = {
    {"user"},
    {"system"},
    {"assistant"},
    {"tool"},
    {"system", "user"},
    {"user", "assistant", "user"},
    {"system", "user", "assistant", "user", "assistant"},
    {"user", "assistant", "tool"},
    {"system", "user", "assistant", "tool", "assistant", "user"},
};
constexpr const char* kProbedVariables[] = {
    "",
    R"({"tools":[{"type":"function","function":{"name":"probe","description":"probe",)"
    R"("parameters":{"type":"object","properties":{"probe":{"type":"string",)"
    R"("description":"probe"}},"required":["probe"]}}}]})",
};

// It is no judgement on the template, unlike the errors without a reason.
bool IsOutOfMemory(const absl::Status& status) {
  return !GetErrorDetail(status).reason.empty();
}

// `calls`: assistants call a tool, with an id as Mistral's templates want it.
Chat ProbingChat(const Roles& roles, bool calls) {
  Chat chat;
  for (const char* role : roles) {
    ChatMessage message;
    message.role = role;
    message.content = "probe";
    if (message.role == "tool") {
      message.name = "probe";
      message.tool_call_id = "probe1234";
    }
    if (calls && message.role == "assistant") {
      message.content.clear();
      message.tool_calls = {{.id = "probe1234", .name = "probe", .arguments_json = "{}"}};
    }
    chat.messages.push_back(std::move(message));
  }
  return chat;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ProbeTemplate(std::string_view source,
                                                       const ChatTemplate::Tokens& tokens) {
  const auto parsed = ChatTemplate::Parse(source, tokens);
  if (IsOutOfMemory(parsed.status())) return parsed.status();
  if (!parsed.ok()) return std::vector<std::string>();
  const std::vector<std::string> literals = (*parsed)->Literals();
  std::set<std::string> written(literals.begin(), literals.end());
  size_t bytes = 0;
  for (const Roles& roles : kProbedRoles) {
    for (const bool calls : {false, true}) {
      Chat chat = ProbingChat(roles, calls);
      for (const char* variables : kProbedVariables) {
        for (const bool add_generation_prompt : {true, false}) {
          if (bytes > kMaxProbedBytes) break;
          chat.variables_json = variables;
          chat.add_generation_prompt = add_generation_prompt;
          const auto rendered = (*parsed)->Render(chat);
          if (IsOutOfMemory(rendered.status())) return rendered.status();
          if (!rendered.ok()) continue;
          for (const ByteRange& range : JoinTouching(rendered->control)) {
            const auto [stretch, is_new] =
                written.insert(rendered->text.substr(range.begin, range.end - range.begin));
            if (is_new) bytes += stretch->size();
          }
        }
      }
    }
  }
  return std::vector<std::string>(written.begin(), written.end());
}

}  // namespace eta
