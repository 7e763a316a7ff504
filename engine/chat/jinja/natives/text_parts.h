// Parts of texts, which keep what the template wrote. Methods and filters share these.
#pragma once

#include <optional>
#include <string_view>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// str.strip, lstrip and rstrip; without `characters` whitespace goes.
Value Strip(Heap& heap, const Text& text, std::optional<std::string_view> characters, bool left,
            bool right);
// str.replace; at most `count` times unless it is negative.
Value Replace(Heap& heap, const Text& text, const Text& old, const Text& fresh, int64_t count);

enum class Casing { kLower, kUpper, kTitle, kCapitalize };
Value InCase(Heap& heap, const Text& text, Casing casing);

// As methods of a text: the argument `chars`, and none.
template <bool left, bool right>
Result StripText(Context& context, const Value& receiver, Arguments& arguments) {
  if (!arguments.Has(0)) {
    return Strip(context.heap, receiver.text(), std::nullopt, left, right);
  }
  ASSIGN_OR_RETURN(const auto characters, arguments.Text(0));
  return Strip(context.heap, receiver.text(), characters.text().bytes, left, right);
}
template <Casing casing>
Result CaseText(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  return InCase(context.heap, receiver.text(), casing);
}

}  // namespace eta::jinja
