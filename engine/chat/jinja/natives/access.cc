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

// What changes a value, which transformers' immutable sandbox forbids.
constexpr std::array<std::string_view, 13> kMutators = {
    "append",  "clear",      "extend", "insert", "pop",         "popitem",    "remove",
    "reverse", "setdefault", "sort",   "update", "__setitem__", "__delitem__"};
// What Python's own types have beyond what is known here.
constexpr std::array<std::string_view, 22> kTextAttributes = {
    "casefold",  "center",      "encode",       "expandtabs",  "format_map", "isidentifier",
    "isnumeric", "isprintable", "ljust",        "maketrans",   "rjust",      "swapcase",
    "translate", "zfill",       "partition",    "rpartition",  "isascii",    "istitle",
    "index",     "rindex",      "removeprefix", "removesuffix"};
constexpr std::array<std::string_view, 14> kNumberAttributes = {
    "real",       "imag",      "numerator", "denominator", "bit_length",
    "bit_count",  "conjugate", "to_bytes",  "from_bytes",  "as_integer_ratio",
    "is_integer", "hex",       "fromhex",   "is_absolute"};

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

absl::StatusOr<Value> Forbidden(Context& /*context*/, const Value& receiver, Call& /*call*/) {
  return Fail("a method that changes a " + std::string(receiver.TypeName()) +
              " is forbidden in templates");
}
constexpr Native kForbidden = {"", &Forbidden};

bool IsMutator(const Value& value, std::string_view name) {
  const bool list = value.IsSequence() && value.sequence().form == Sequence::Form::kList;
  if (!list && !value.IsDict()) return false;
  static constexpr std::array<std::string_view, 3> kOfBoth = {"clear", "pop", "__setitem__"};
  static constexpr std::array<std::string_view, 3> kOfDicts = {"popitem", "setdefault", "update"};
  if (!Has(kMutators, name)) return false;
  return Has(kOfBoth, name) || Has(kOfDicts, name) == value.IsDict();
}

absl::Status NotKnownAttribute(const Value& value, std::string_view name) {
  return NotKnown("'" + std::string(name) + "' of a " + std::string(value.TypeName()) +
                  " is not known here");
}

// Python's own attributes of the value's type, methods above all; nullopt where there is none.
absl::StatusOr<std::optional<Value>> OwnAttribute(Heap& heap, const Value& value,
                                                  std::string_view name) {
  if (const Native* method = FindMethod(value, name)) return Bound(heap, value, *method);
  if (IsMutator(value, name)) return Bound(heap, value, kForbidden);
  switch (value.kind()) {
    case Kind::kText:
      if (Has(kTextAttributes, name)) return NotKnownAttribute(value, name);
      break;
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kReal:
      if (Has(kNumberAttributes, name)) return NotKnownAttribute(value, name);
      break;
    case Kind::kDict:
      if (name == "copy" || name == "fromkeys") return NotKnownAttribute(value, name);
      break;
    case Kind::kSequence:
      if (name == "copy" || name == "isdisjoint" || name == "mapping" || name == "send" ||
          name == "throw" || name == "close" || name == "grouper" || name == "list") {
        return NotKnownAttribute(value, name);
      }
      break;
    case Kind::kNamespace: {
      const auto& attributes = value.As<Namespace>().attributes;
      heap.Work(attributes.size() / 16);
      const auto entry = std::find_if(attributes.begin(), attributes.end(),
                                      [&](const auto& other) { return other.first == name; });
      if (entry != attributes.end()) return entry->second;
      break;
    }
    case Kind::kLoop:
      if (auto attribute = LoopAttribute(heap, value.As<Loop>(), name)) return *attribute;
      break;
    case Kind::kCycler: {
      const auto& cycler = value.As<Cycler>();
      if (name == "current") return cycler.items.sequence().items[cycler.position];
      break;
    }
    case Kind::kFunction:
      // A method has none that templates may see; Python's functions and types have some.
      if (value.As<Function>().receiver.IsUndefined()) return NotKnownAttribute(value, name);
      break;
    case Kind::kMacro:
      if (Has(kMacroAttributes, name)) return NotKnownAttribute(value, name);
      break;
    case Kind::kJoiner:
      if (name == "sep" || name == "used") return NotKnownAttribute(value, name);
      break;
    default:
      break;
  }
  return std::nullopt;
}

// Of the indices that a slice takes: where it begins, in which steps, and how many.
struct Steps {
  int64_t first = 0;
  int64_t step = 1;
  int64_t count = 0;
};

absl::StatusOr<Steps> StepsOf(int64_t length, const Value& start, const Value& stop,
                              const Value& step) {
  for (const Value* part : {&start, &stop, &step}) {
    if (!part->IsIntegral() && !part->Is(Kind::kNone)) {
      return Fail("slice indices must be integers or None");
    }
  }
  Steps steps;
  if (step.IsIntegral()) steps.step = step.integer();
  if (steps.step == 0) return Fail("slice step cannot be zero");
  const bool down = steps.step < 0;
  const auto clamp = [&](const Value& part, int64_t other) {
    if (!part.IsIntegral()) return other;
    int64_t at = part.integer();
    if (at < 0) at = at < -length ? -1 : at + length;
    if (at < 0) return down ? int64_t{-1} : int64_t{0};
    return std::min(at, down ? length - 1 : length);
  };
  steps.first = clamp(start, down ? length - 1 : 0);
  const int64_t last = clamp(stop, down ? -1 : length);
  const int64_t span = down ? steps.first - last : last - steps.first;
  if (span > 0) {
    // The quotient by a step near the least of all int64_t cannot be taken of its opposite.
    const uint64_t stride =
        down ? ~static_cast<uint64_t>(steps.step) + 1 : static_cast<uint64_t>(steps.step);
    steps.count = static_cast<int64_t>((static_cast<uint64_t>(span) - 1) / stride) + 1;
  }
  return steps;
}

// Indices of the items that a slice takes.
template <typename Take>
void ForEach(const Steps& steps, const Take& take) {
  int64_t at = steps.first;
  for (int64_t i = 0; i < steps.count; ++i) {
    take(static_cast<size_t>(at));
    if (i + 1 < steps.count) at += steps.step;
  }
}

Value SliceText(Heap& heap, const Text& text, const Steps& steps) {
  const std::string_view bytes = text.bytes;
  if (steps.count == 0) return MakeText(heap, "");
  if (steps.step == 1) {
    const size_t begin = ByteOfCharacter(bytes, static_cast<size_t>(steps.first));
    const size_t size = ByteOfCharacter(bytes.substr(begin), static_cast<size_t>(steps.count));
    return SubText(heap, text, begin, begin + size);
  }
  std::vector<size_t> starts;  // of characters
  heap.Work(bytes.size());
  for (size_t at = 0; at < bytes.size(); at += Utf8Length(bytes[at])) starts.push_back(at);
  TextBuilder out(heap);
  ForEach(steps, [&](size_t at) {
    out.Append(text, starts[at], starts[at] + Utf8Length(bytes[starts[at]]));
  });
  return out.Finish();
}

}  // namespace

size_t CountCharacters(std::string_view text) {
  return text.size() -
         static_cast<size_t>(std::count_if(text.begin(), text.end(), IsUtf8Continuation));
}

size_t ByteOfCharacter(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += Utf8Length(text[at]);
  return at;
}

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
  if (name == "depth0") return Value::Integer(static_cast<int64_t>(loop.depth0));
  if (name == "depth") return Value::Integer(static_cast<int64_t>(loop.depth0) + 1);
  if (name == "previtem") {
    return index > 0 ? items[loop.index0 - 1] : Value::Undefined(heap, "there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? items[loop.index0 + 1]
                              : Value::Undefined(heap, "there is no next item");
  }
  return std::nullopt;
}

absl::StatusOr<Value> Attribute(Heap& heap, const Value& value, const Value& name) {
  if (value.IsUndefined()) return Fail(value.why());
  const std::string_view key = name.text().bytes;
  auto own = OwnAttribute(heap, value, key);
  if (!own.ok()) return own.status();
  if (*own) return **own;
  if (value.IsDict()) {
    const auto found = FindKey(heap, value.dict(), name);
    if (!found.ok()) return found.status();
    if (*found != nullptr) return **found;
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
  const auto own = OwnAttribute(heap, value, key.text().bytes);
  if (!own.ok()) return own.status();
  return *own ? **own : Missing(heap, value, key.text().bytes);
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
  const auto steps = StepsOf(static_cast<int64_t>(length), start, stop, step);
  if (!steps.ok()) return steps.status();
  if (value.IsText()) {
    Value text = SliceText(heap, value.text(), *steps);
    text.As<Text>().safe = value.text().safe;
    return text;
  }
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(steps->count));
  ForEach(*steps, [&](size_t at) { items.push_back(value.sequence().items[at]); });
  Value slice = MakeSequence(heap, value.sequence().form, std::move(items));
  return slice;
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
