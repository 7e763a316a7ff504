#include "engine/chat/jinja/natives/access.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

// What changes a list or a dict, which transformers' immutable sandbox forbids.
constexpr std::array<std::string_view, 8> kListMutators = {"append", "clear",  "extend",  "insert",
                                                           "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 5> kDictMutators = {"clear", "pop", "popitem", "setdefault",
                                                           "update"};
// What Python's own types have beyond what is known here.
constexpr std::array<std::string_view, 35> kTextAttributes = {
    "casefold",     "center",       "count",    "encode",    "expandtabs",  "find",
    "format_map",   "index",        "isalnum",  "isalpha",   "isascii",     "isdecimal",
    "isdigit",      "isidentifier", "islower",  "isnumeric", "isprintable", "isspace",
    "istitle",      "isupper",      "join",     "ljust",     "maketrans",   "partition",
    "removeprefix", "removesuffix", "rfind",    "rindex",    "rjust",       "rpartition",
    "rsplit",       "splitlines",   "swapcase", "translate", "zfill"};
constexpr std::array<std::string_view, 14> kNumberAttributes = {
    "real",       "imag",      "numerator", "denominator", "bit_length",
    "bit_count",  "conjugate", "to_bytes",  "from_bytes",  "as_integer_ratio",
    "is_integer", "hex",       "fromhex",   "is_absolute"};
constexpr std::array<std::string_view, 10> kSequenceAttributes = {
    "copy", "count", "index", "isdisjoint", "mapping", "send", "throw", "close", "grouper", "list"};
constexpr std::array<std::string_view, 2> kDictAttributes = {"copy", "fromkeys"};
constexpr std::array<std::string_view, 4> kLoopAttributes = {"changed", "cycle", "depth", "depth0"};
constexpr std::array<std::string_view, 6> kMacroAttributes = {
    "name", "arguments", "catch_kwargs", "catch_varargs", "caller", "explicit_caller"};

template <size_t n>
bool Has(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value Missing(Heap& heap, const Value& value, std::string_view name) {
  return Value::Undefined(
      heap, "'" + std::string(value.TypeName()) + "' has no attribute '" + std::string(name) + "'");
}

// A method bound to its value.
Value Bound(Heap& heap, const Value& value, const Native& native) {
  auto function = MakeObject<Function>(heap, 0, value.depth() + 1);
  function->native = &native;
  function->receiver = value;
  return Value(Kind::kFunction, std::move(function));
}

Result Forbidden(Context& /*context*/, const Value& receiver, Arguments& /*arguments*/) {
  return Fail("a method that changes a " + std::string(receiver.TypeName()) +
              " is forbidden in templates");
}

bool IsMutator(const Value& value, std::string_view name) {
  if (value.IsDict()) return Has(kDictMutators, name);
  return value.IsSequence() && value.sequence().form == Sequence::Form::kList &&
         Has(kListMutators, name);
}

// Whether the value's type has an attribute of that name in Python that is not known here.
bool IsUnknownAttribute(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kText:
      return Has(kTextAttributes, name);
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kReal:
      return Has(kNumberAttributes, name);
    case Kind::kDict:
      return Has(kDictAttributes, name);
    case Kind::kSequence:
      return Has(kSequenceAttributes, name);
    case Kind::kLoop:
      return Has(kLoopAttributes, name);
    case Kind::kFunction:
      // A method has none that templates may see; Python's functions and types have some.
      return value.As<Function>().receiver.IsUndefined();
    case Kind::kMacro:
      return Has(kMacroAttributes, name);
    default:
      return false;
  }
}

// Of the variable `loop`; nullopt where it has none of that name.
std::optional<Value> LoopAttribute(Heap& heap, const Loop& loop, std::string_view name) {
  const std::vector<Value>& items = loop.items.sequence().items;
  const auto index = static_cast<int64_t>(loop.index0);
  const auto length = static_cast<int64_t>(items.size());
  if (name == "index") return Value::Integer(index + 1);
  if (name == "index0") return Value::Integer(index);
  if (name == "first") return Value::Boolean(index == 0);
  if (name == "last") return Value::Boolean(index + 1 == length);
  if (name == "length") return Value::Integer(length);
  if (name == "revindex") return Value::Integer(length - index);
  if (name == "revindex0") return Value::Integer(length - index - 1);
  if (name == "previtem") {
    return index > 0 ? items[loop.index0 - 1] : Value::Undefined(heap, "there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? items[loop.index0 + 1]
                              : Value::Undefined(heap, "there is no next item");
  }
  return std::nullopt;
}

// Python's own attributes of the value's type, methods above all; nullopt where there is none.
absl::StatusOr<std::optional<Value>> OwnAttribute(Heap& heap, const Value& value,
                                                  std::string_view name) {
  if (const Native* method = FindMethod(value, name)) return Bound(heap, value, *method);
  static const auto* const forbidden = new Native{.name = "", .run = &Forbidden, .takes_any = true};
  if (IsMutator(value, name)) return Bound(heap, value, *forbidden);
  if (IsUnknownAttribute(value, name)) {
    return NotKnown("'" + std::string(name) + "' of a " + std::string(value.TypeName()) +
                    " is not known here");
  }
  if (value.Is(Kind::kLoop)) return LoopAttribute(heap, value.As<Loop>(), name);
  if (value.Is(Kind::kNamespace)) {
    const auto& attributes = value.As<Namespace>().attributes;
    heap.Work(attributes.size() / 16);
    for (const auto& [other, attribute] : attributes) {
      if (other == name) return attribute;
    }
  }
  return std::nullopt;
}

// The items that a slice takes, [begin, end), and whether the last comes first.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  bool backwards = false;
};

absl::StatusOr<Span> SpanOf(int64_t length, const Value& start, const Value& stop,
                            const Value& step) {
  for (const Value* part : {&start, &stop, &step}) {
    if (!part->IsIntegral() && !part->Is(Kind::kNone)) {
      return Fail("slice indices must be integers or None");
    }
  }
  const int64_t stride = step.IsIntegral() ? step.integer() : 1;
  if (stride == 0) return Fail("slice step cannot be zero");
  if (stride != 1 && stride != -1) {
    return NotKnown("steps of a slice other than 1 and -1 are not known here");
  }
  // Where a part lies in [-1, length], and where it lies if it is absent.
  const auto at = [length](const Value& part, int64_t other) {
    if (!part.IsIntegral()) return other;
    const int64_t index = part.integer();
    return std::clamp<int64_t>(index < 0 ? index + length : index, -1, length);
  };
  if (stride == -1) {
    const int64_t first = std::min(at(start, length - 1), length - 1);
    return Span{at(stop, -1) + 1, first + 1, true};
  }
  return Span{std::max<int64_t>(at(start, 0), 0), std::max<int64_t>(at(stop, length), 0)};
}

size_t ByteOfCharacter(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += Utf8Length(text[at]);
  return at;
}

Value SliceText(Heap& heap, const Text& text, const Span& span) {
  const std::string_view bytes = text.bytes;
  const size_t begin = ByteOfCharacter(bytes, static_cast<size_t>(span.begin));
  size_t end = ByteOfCharacter(bytes, static_cast<size_t>(span.end));
  if (!span.backwards || begin >= end) return SubText(heap, text, begin, end);
  TextBuilder out(heap);
  heap.Work(end - begin);
  while (end > begin) {
    const size_t last = Utf8Before(bytes, end);
    out.Append(text, last, end);
    end = last;
  }
  return out.Finish();
}

}  // namespace

absl::StatusOr<Value> Attribute(Heap& heap, const Value& value, const Value& name) {
  if (value.IsUndefined()) return Fail(value.why());
  const std::string_view key = name.text().bytes;
  ASSIGN_OR_RETURN(auto own, OwnAttribute(heap, value, key));
  if (own) return *own;
  if (value.IsDict()) {
    ASSIGN_OR_RETURN(const auto found, FindKey(heap, value.dict(), name));
    if (found != nullptr) return *found;
  }
  return Missing(heap, value, key);
}

absl::StatusOr<Value> Item(Heap& heap, const Value& value, const Value& key) {
  if (value.IsUndefined()) return Fail(value.why());
  if (value.IsDict()) {
    const auto found = FindKey(heap, value.dict(), key);
    if (absl::IsUnimplemented(found.status())) return found.status();
    if (found.ok() && *found != nullptr) return **found;
  } else if (key.IsIntegral() &&
             (value.IsText() || (value.IsSequence() && value.sequence().HasItems()))) {
    int64_t at = key.integer();
    if (value.IsText()) {
      const std::string_view bytes = value.text().bytes;
      heap.WorkOnBytes(bytes.size());
      const auto length = static_cast<int64_t>(CountCharacters(bytes));
      if (at < 0) at += length;
      if (at >= 0 && at < length) {
        const size_t begin = ByteOfCharacter(bytes, static_cast<size_t>(at));
        return SubText(heap, value.text(), begin, begin + Utf8Length(bytes[begin]));
      }
    } else {
      const std::vector<Value>& items = value.sequence().items;
      if (at < 0) at += static_cast<int64_t>(items.size());
      if (at >= 0 && at < static_cast<int64_t>(items.size())) return items[static_cast<size_t>(at)];
    }
    return Value::Undefined(heap, std::string(value.TypeName()) + " index out of range");
  }
  if (!key.IsText()) return Missing(heap, value, key.TypeName());
  ASSIGN_OR_RETURN(const auto own, OwnAttribute(heap, value, key.text().bytes));
  return own ? *own : Missing(heap, value, key.text().bytes);
}

absl::StatusOr<Value> Slice(Heap& heap, const Value& value, const Value& start, const Value& stop,
                            const Value& step) {
  if (value.IsUndefined()) return Fail(value.why());
  const bool has_items = value.IsSequence() && value.sequence().HasItems();
  if (!value.IsText() && !has_items) {
    // An error in Python, unless Jinja knows the value beforehand.
    return NotKnown("slices of a " + std::string(value.TypeName()) + " are not known here");
  }
  size_t length = 0;
  if (value.IsText()) {
    heap.WorkOnBytes(value.text().bytes.size());
    length = CountCharacters(value.text().bytes);
  } else {
    length = value.sequence().items.size();
  }
  ASSIGN_OR_RETURN(const auto span, SpanOf(static_cast<int64_t>(length), start, stop, step));
  if (value.IsText()) {
    Value text = SliceText(heap, value.text(), span);
    text.As<Text>().safe = value.text().safe;
    return text;
  }
  std::vector<Value> items;
  for (int64_t at = span.begin; at < span.end; ++at) {
    items.push_back(value.sequence().items[static_cast<size_t>(at)]);
  }
  if (span.backwards) std::reverse(items.begin(), items.end());
  return MakeSequence(heap, value.sequence().form, std::move(items));
}

absl::StatusOr<int64_t> Length(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kText:
      heap.WorkOnBytes(value.text().bytes.size());
      return static_cast<int64_t>(CountCharacters(value.text().bytes));
    case Kind::kSequence:
      if (!value.sequence().HasLength()) break;
      return static_cast<int64_t>(value.sequence().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    case Kind::kLoop:
      return static_cast<int64_t>(value.As<Loop>().items.sequence().items.size());
    default:
      break;
  }
  return Fail("object of type '" + std::string(value.TypeName()) + "' has no len()");
}

}  // namespace eta::jinja
