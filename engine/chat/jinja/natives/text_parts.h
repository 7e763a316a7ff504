// Parts of texts, which keep what the template wrote: the ends stripped, pieces between separators.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// str.strip, lstrip and rstrip; without `characters` whitespace goes.
Value Strip(Heap& heap, const Text& text, std::optional<std::string_view> characters, bool left,
            bool right);
// str.replace; at most `count` times unless it is negative.
Value Replace(Heap& heap, const Text& text, const Text& old, const Text& fresh, int64_t count);
// str.splitlines
std::vector<Value> Lines(Heap& heap, const Text& text, bool keep_ends);

// str.islower, or str.isupper.
bool HasCase(std::string_view bytes, bool lower);

enum class Casing { kLower, kUpper, kTitle, kCapitalize, kWordTitle };
// kTitle: str.title. kWordTitle: Jinja's filter title.
Value InCase(Heap& heap, const Text& text, Casing casing);

}  // namespace eta::jinja
