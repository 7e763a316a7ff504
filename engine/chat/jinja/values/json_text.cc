#include "engine/chat/jinja/values/json_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/python_text.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

void AppendUnit(char32_t unit, std::string& out) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[unit >> shift & 0xF];
}

// What stands for a character in a string; empty if it stands for itself.
std::string Escape(char32_t c, bool ascii) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\f':
      return "\\f";
    case '\b':
      return "\\b";
    default:
      break;
  }
  std::string out;
  if (c >= 0x20 && (!ascii || c < 0x7F)) return out;
  if (c >= 0x7F && !ascii) return out;
  if (c < 0x10000) {
    AppendUnit(c, out);
  } else {
    AppendUnit(0xD800 + ((c - 0x10000) >> 10), out);
    AppendUnit(0xDC00 + ((c - 0x10000) & 0x3FF), out);
  }
  return out;
}

void AppendString(const Text& text, bool ascii, TextBuilder& out) {
  const std::string_view bytes = text.bytes;
  out.Append("\"");
  size_t plain = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = at + Utf8Length(bytes[at]);
    if (const std::string escape = Escape(Utf8At(bytes, at), ascii); !escape.empty()) {
      out.Append(text, plain, at);
      out.Append(escape, IsOwn(text, at));
      plain = end;
    }
    at = end;
  }
  out.Append(text, plain, bytes.size());
  out.Append("\"");
}

std::string RealJson(double real) {
  if (std::isnan(real)) return "NaN";
  if (std::isinf(real)) return real > 0 ? "Infinity" : "-Infinity";
  return RealText(real);
}

absl::Status NotSerializable(const Value& value) {
  return absl::InvalidArgumentError("Object of type " + std::string(value.TypeName()) +
                                    " is not JSON serializable");
}

absl::Status AppendScalar(const Value& value, bool ascii, TextBuilder& out) {
  switch (value.kind()) {
    case Kind::kNone:
      out.Append("null");
      return absl::OkStatus();
    case Kind::kBoolean:
      out.Append(value.integer() != 0 ? "true" : "false");
      return absl::OkStatus();
    case Kind::kInteger:
      out.Append(std::to_string(value.integer()));
      return absl::OkStatus();
    case Kind::kReal:
      out.Append(RealJson(value.real()));
      return absl::OkStatus();
    case Kind::kText:
      AppendString(value.text(), ascii, out);
      return absl::OkStatus();
    default:
      return NotSerializable(value);
  }
}

absl::Status AppendKey(const Value& key, bool ascii, TextBuilder& out) {
  if (key.IsText()) {
    AppendString(key.text(), ascii, out);
    return absl::OkStatus();
  }
  out.Append("\"");
  RETURN_IF_ERROR(AppendScalar(key, ascii, out));
  out.Append("\"");
  return absl::OkStatus();
}

bool IsArray(const Value& value) {
  return value.IsSequence() && (value.sequence().form == Sequence::Form::kList ||
                                value.sequence().form == Sequence::Form::kTuple);
}

// An array or object whose items are being written.
struct OpenContainer {
  const Value* value;
  std::vector<size_t> order;  // of the entries of an object with sorted keys
  size_t next = 0;
};

absl::StatusOr<std::vector<size_t>> SortedKeys(Heap& heap, const Dict& dict) {
  std::vector<size_t> order(dict.entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  absl::Status status;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto less = Less(heap, dict.entries[a].first, dict.entries[b].first);
    if (!less.ok()) status = less.status();
    return less.ok() && *less;
  });
  if (!status.ok()) return status;
  return order;
}

}  // namespace

absl::StatusOr<Value> JsonText(Heap& heap, const Value& value, const JsonStyle& style) {
  TextBuilder out(heap);
  std::vector<OpenContainer> open;
  const auto new_line = [&] {
    if (!style.indent) return;
    out.Append("\n");
    for (size_t level = 0; level < open.size(); ++level) out.Append(*style.indent);
  };
  // Writes a value whole, or opens it.
  const auto begin = [&](const Value& item) -> absl::Status {
    if (!IsArray(item) && !item.IsDict()) return AppendScalar(item, style.ascii, out);
    OpenContainer opened{&item, {}};
    if (item.IsDict() && style.sort_keys) {
      auto order = SortedKeys(heap, item.dict());
      if (!order.ok()) return order.status();
      opened.order = *std::move(order);
    }
    out.Append(item.IsDict() ? "{" : "[");
    open.push_back(std::move(opened));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(begin(value));
  while (!open.empty()) {
    heap.Work(1);
    if (heap.exhausted()) return heap.status();
    OpenContainer& top = open.back();
    const bool object = top.value->IsDict();
    const size_t size =
        object ? top.value->dict().entries.size() : top.value->sequence().items.size();
    if (top.next == size) {
      open.pop_back();
      if (size > 0) new_line();
      out.Append(object ? "}" : "]");
      continue;
    }
    if (top.next > 0) out.Append(style.item_separator);
    new_line();
    const size_t at = top.order.empty() ? top.next : top.order[top.next];
    ++top.next;
    if (object) {
      const auto& [key, item] = top.value->dict().entries[at];
      RETURN_IF_ERROR(AppendKey(key, style.ascii, out));
      out.Append(style.key_separator);
      RETURN_IF_ERROR(begin(item));
    } else {
      RETURN_IF_ERROR(begin(top.value->sequence().items[at]));
    }
  }
  return out.Finish();
}

}  // namespace eta::jinja
