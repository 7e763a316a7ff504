#include "engine/chat/jinja/natives/attribute_path.h"

#include <algorithm>
#include <charconv>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/access.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {

AttributePath AttributePath::Parse(Heap& heap, const Value& attribute) {
  AttributePath path;
  if (attribute.Is(Kind::kNone) || attribute.IsUndefined()) return path;
  if (!attribute.IsText()) {
    path.parts_.push_back(attribute);
    return path;
  }
  const std::string_view text = attribute.text().bytes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    int64_t index = 0;
    if (number &&
        std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc()) {
      path.parts_.push_back(Value::Integer(index));
    } else {
      path.parts_.push_back(SubText(heap, attribute.text(), begin, end));
    }
    begin = end + 1;
  }
  return path;
}

absl::StatusOr<Value> AttributePath::Of(Heap& heap, const Value& item, const Value& other) const {
  Value value = item;
  for (const Value& part : parts_) {
    heap.Work(1);
    ASSIGN_OR_RETURN(value, Item(heap, value, part));
    if (value.IsUndefined() && !other.IsUndefined() && !other.Is(Kind::kNone)) value = other;
  }
  return value;
}

}  // namespace eta::jinja
