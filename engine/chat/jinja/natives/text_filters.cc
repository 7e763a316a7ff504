// lint: untrusted-input, fuzz-covered
// Filters that make texts.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/natives/text_parts.h"
#include "engine/chat/jinja/values/html.h"
#include "engine/chat/jinja/values/json_text.h"
#include "engine/chat/jinja/values/percent_format.h"
#include "engine/chat/jinja/values/python_text.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr int64_t kMaxIndent = 1000;

template <Casing casing>
Result CaseFilter(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("a filter of case", call, {});
  if (!arguments.ok()) return arguments.status();
  const auto text = ToText(context.heap, receiver);
  if (!text.ok()) return text.status();
  return InCase(context.heap, text->text(), casing);
}

Result Trim(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("trim", call, {"chars"});
  if (!arguments.ok()) return arguments.status();
  const auto text = ToText(context.heap, receiver);
  if (!text.ok()) return text.status();
  if (!arguments->Has(0) || (*arguments)[0].Is(Kind::kNone)) {
    return Strip(context.heap, text->text(), std::nullopt, true, true);
  }
  const auto characters = arguments->Text(0);
  if (!characters.ok()) return characters.status();
  return Strip(context.heap, text->text(), characters->text().bytes, true, true);
}

Result ReplaceFilter(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("replace", call, {"old", "new", "count"}, 2);
  if (!arguments.ok()) return arguments.status();
  const auto text = ToText(context.heap, receiver);
  if (!text.ok()) return text.status();
  const auto old = ToText(context.heap, (*arguments)[0]);
  if (!old.ok()) return old.status();
  const auto fresh = ToText(context.heap, (*arguments)[1]);
  if (!fresh.ok()) return fresh.status();
  const auto count = arguments->Integer(2, -1);
  if (!count.ok()) return count.status();
  context.heap.WorkOnBytes(text->text().bytes.size());
  return Replace(context.heap, text->text(), old->text(), fresh->text(), *count);
}

Result String(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("string", call, {});
  if (!arguments.ok()) return arguments.status();
  return ToText(context.heap, receiver);
}

Result MakeSafe(Context& context, const Value& receiver, bool escape, bool again) {
  const auto text = ToText(context.heap, receiver);
  if (!text.ok()) return text.status();
  TextBuilder out(context.heap);
  if (escape && (again || !text->text().safe)) {
    AppendHtml(text->text(), out);
  } else {
    out.Append(text->text());
  }
  Value safe = out.Finish();
  safe.As<Text>().safe = true;
  return safe;
}
Result Safe(Context& context, const Value& receiver, Call& /*call*/) {
  return MakeSafe(context, receiver, false, false);
}
Result EscapeFilter(Context& context, const Value& receiver, Call& /*call*/) {
  return MakeSafe(context, receiver, true, false);
}
Result ForceEscape(Context& context, const Value& receiver, Call& /*call*/) {
  return MakeSafe(context, receiver, true, true);
}

Result Format(Context& context, const Value& receiver, Call& call) {
  const auto text = ToText(context.heap, receiver);
  if (!text.ok()) return text.status();
  if (!call.positional.empty() && !call.named.empty()) {
    return Fail("'format' takes either arguments or named ones");
  }
  if (call.named.empty()) {
    return PercentFormat(context.heap, text->text(), MakeTuple(context.heap, call.positional));
  }
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(call.named.size());
  for (const auto& [name, value] : call.named) {
    entries.emplace_back(MakeText(context.heap, std::string(name)), value);
  }
  return PercentFormat(context.heap, text->text(), MakeDict(context.heap, std::move(entries)));
}

// As wide as a number says, or the text itself.
absl::StatusOr<Value> Indentation(Context& context, const Value& width) {
  if (width.IsText()) return width;
  if (!width.IsIntegral()) return Fail("an indentation must be an int or a str");
  if (width.integer() > kMaxIndent) {
    return absl::ResourceExhaustedError("an indentation of over " + std::to_string(kMaxIndent));
  }
  return MakeText(context.heap,
                  std::string(static_cast<size_t>(std::max<int64_t>(width.integer(), 0)), ' '));
}

Result Indent(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("indent", call, {"width", "first", "blank"});
  if (!arguments.ok()) return arguments.status();
  if (receiver.IsUndefined()) return Fail(receiver.why());
  if (!receiver.IsText()) return Fail("'indent' needs a str");
  const auto indentation = Indentation(context, arguments->Or(0, Value::Integer(4)));
  if (!indentation.ok()) return indentation.status();
  const bool blank = arguments->Truth(2);
  // Jinja adds a line break first: so the last line is there even if it is empty.
  TextBuilder extended(context.heap);
  extended.Append(receiver.text());
  extended.Append("\n");
  const Value whole = extended.Finish();
  TextBuilder out(context.heap);
  if (arguments->Truth(1)) out.Append(indentation->text());
  bool first = true;
  for (const Value& line : Lines(context.heap, whole.text(), false)) {
    if (!std::exchange(first, false)) {
      out.Append("\n");
      if (blank || !line.text().bytes.empty()) out.Append(indentation->text());
    }
    out.Append(line.text());
  }
  return out.Finish();
}

Result ToJson(Context& context, const Value& receiver, Call& call) {
  const auto arguments =
      Arguments::Bind("tojson", call, {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (!arguments.ok()) return arguments.status();
  JsonStyle style;
  style.ascii = arguments->Truth(0);
  style.sort_keys = arguments->Truth(3);
  if (arguments->Has(1) && !(*arguments)[1].Is(Kind::kNone)) {
    const auto indentation = Indentation(context, (*arguments)[1]);
    if (!indentation.ok()) return indentation.status();
    style.indent = indentation->text().bytes;
    style.item_separator = ",";
  }
  if (arguments->Has(2) && !(*arguments)[2].Is(Kind::kNone)) {
    const Value& separators = (*arguments)[2];
    if (!separators.IsSequence() || separators.sequence().items.size() != 2 ||
        !separators.sequence().items[0].IsText() || !separators.sequence().items[1].IsText()) {
      return Fail("'separators' must be two str");
    }
    style.item_separator = separators.sequence().items[0].text().bytes;
    style.key_separator = separators.sequence().items[1].text().bytes;
  }
  return JsonText(context.heap, receiver, style);
}

Result WordCount(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("wordcount", call, {});
  if (!arguments.ok()) return arguments.status();
  const auto text = ToText(context.heap, receiver);
  if (!text.ok()) return text.status();
  const std::string_view bytes = text->text().bytes;
  context.heap.Work(bytes.size() / 16);
  int64_t count = 0;
  bool inside = false;
  for (size_t at = 0; at < bytes.size(); at += Utf8Length(bytes[at])) {
    const char32_t c = Utf8At(bytes, at);
    const bool word = c == '_' || IsAlnum(c);
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::Integer(count);
}

}  // namespace

std::vector<Native> TextFilters() {
  return {
      {"capitalize", &CaseFilter<Casing::kCapitalize>},
      {"e", &EscapeFilter},
      {"escape", &EscapeFilter},
      {"forceescape", &ForceEscape},
      {"format", &Format},
      {"indent", &Indent},
      {"lower", &CaseFilter<Casing::kLower>},
      {"replace", &ReplaceFilter},
      {"safe", &Safe},
      {"string", &String},
      {"title", &CaseFilter<Casing::kWordTitle>},
      {"tojson", &ToJson},
      {"trim", &Trim},
      {"upper", &CaseFilter<Casing::kUpper>},
      {"wordcount", &WordCount},
  };
}

}  // namespace eta::jinja
