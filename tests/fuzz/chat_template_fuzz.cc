// TEMPLATE NUL CONTENT NUL VARIABLES: refused with a sentence, or a program that renders within its
// limits, the same each time, to UTF-8 whose control ranges hold nothing that the message said.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/chat/chat_template.h"

namespace {

constexpr std::string_view kGuard = "\uE000";  // around what the user says

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckRefusal(const absl::Status& status) {
  Check(!status.message().empty());
  Check(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
        absl::IsResourceExhausted(status));
}

std::string_view Next(std::string_view& rest) {
  const std::string_view part = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(part.size() == rest.size() ? rest.size() : part.size() + 1);
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view source = Next(rest);
  const std::string content(Next(rest));
  const auto made = eta::ChatTemplate::Parse(source, {.bos = "<s>", .eos = "</s>"});
  if (!made.ok()) {
    CheckRefusal(made.status());
    return 0;
  }
  const std::string guarded = std::string(kGuard) + content + std::string(kGuard);
  const eta::Chat chat{.messages = {{.role = "system", .content = guarded},
                                    {.role = "user", .content = guarded, .name = guarded},
                                    {.role = "assistant", .content = guarded, .reasoning = guarded},
                                    {.role = "tool", .content = guarded, .tool_call_id = guarded},
                                    {.role = guarded, .content = guarded}},
                       .variables_json = std::string(rest)};
  const auto rendered = (*made)->Render(chat);
  if (!rendered.ok()) {
    CheckRefusal(rendered.status());
    return 0;
  }
  Check(rendered->text.size() <= eta::ChatTemplateLimits::kOutputBytes);
  Check(!eta::FirstInvalidUtf8(rendered->text).has_value());
  // A template that spells the guard, by an escape perhaps, or tells the time proves nothing.
  const bool spells =
      source.find(kGuard) != std::string_view::npos || source.find('\\') != std::string_view::npos;
  size_t last = 0;
  for (const eta::ByteRange& range : rendered->control) {
    Check(range.begin < range.end && range.end <= rendered->text.size());
    Check(last == 0 || range.begin > last);
    last = range.end;
    const std::string_view own =
        std::string_view(rendered->text).substr(range.begin, range.end - range.begin);
    Check(spells || own.find(kGuard) == std::string_view::npos);
  }
  if (source.find("strftime_now") == std::string_view::npos) {
    const auto again = (*made)->Render(chat);
    Check(again.ok() && again->text == rendered->text && again->control == rendered->control);
  }
  return 0;
}
