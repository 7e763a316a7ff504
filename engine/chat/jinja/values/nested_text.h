// Lists and dicts as text, level by level: what repr() and JSON have in common.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/status_macros.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// `Style` has Opening(value), empty for what has no items; Closing(value); Separator();
// AppendBreak(level, out) in front of an item and behind the last; AppendKey(key, out) and
// AppendScalar(value, out), which may fail.
template <typename Style>
absl::Status AppendNested(Heap& heap, const Value& value, const Style& style, TextBuilder& out) {
  struct Open {
    const Value* value;
    size_t next = 0;
  };
  std::vector<Open> open;
  const auto begin = [&](const Value& item) -> absl::Status {
    const std::string_view opening = style.Opening(item);
    if (opening.empty()) return style.AppendScalar(item, out);
    out.Append(opening);
    open.push_back({&item});
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(begin(value));
  while (!open.empty()) {
    heap.Work(1);
    if (heap.exhausted()) return heap.status();
    Open& top = open.back();
    const Value& whole = *top.value;
    const size_t size =
        whole.IsDict() ? whole.dict().entries.size() : whole.sequence().items.size();
    if (top.next == size) {
      open.pop_back();
      if (size > 0) style.AppendBreak(open.size(), out);
      out.Append(style.Closing(whole));
      continue;
    }
    if (top.next > 0) out.Append(style.Separator());
    style.AppendBreak(open.size(), out);
    const size_t at = top.next++;
    if (whole.IsDict()) {
      const auto& [key, item] = whole.dict().entries[at];
      RETURN_IF_ERROR(style.AppendKey(key, out));
      out.Append(": ");
      RETURN_IF_ERROR(begin(item));
    } else {
      RETURN_IF_ERROR(begin(whole.sequence().items[at]));
    }
  }
  return absl::OkStatus();
}

}  // namespace eta::jinja
