// Formats with placeholders: Python's "%s" % value, and str.format.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// `arguments`: a tuple's items, a dict for "%(name)s", or one value. UNIMPLEMENTED for conversions
// other than %s %r %d %i %u %x %X %o %f %F %c and %%.
absl::StatusOr<Value> PercentFormat(Heap& heap, const Text& format, const Value& arguments);

// "{}", "{0}" and "{name}", with "!s" and "!r". UNIMPLEMENTED for attributes and for formats after
// a colon.
absl::StatusOr<Value> BraceFormat(Heap& heap, const Text& format, std::span<const Value> positional,
                                  std::span<const std::pair<std::string_view, Value>> named);

}  // namespace eta::jinja
