// HTML's escapes, as MarkupSafe writes them.
#pragma once

#include <string_view>

#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {

inline void AppendHtml(const Text& text, TextBuilder& out) {
  size_t plain = 0;
  for (size_t at = 0; at < text.bytes.size(); ++at) {
    std::string_view escape;
    switch (text.bytes[at]) {
      case '&':
        escape = "&amp;";
        break;
      case '<':
        escape = "&lt;";
        break;
      case '>':
        escape = "&gt;";
        break;
      case '\'':
        escape = "&#39;";
        break;
      case '"':
        escape = "&#34;";
        break;
      default:
        continue;
    }
    out.Append(text, plain, at);
    out.Append(escape, IsOwn(text, at));
    plain = at + 1;
  }
  out.Append(text, plain, text.bytes.size());
}

}  // namespace eta::jinja
