// lint: untrusted-input, fuzz-covered
// Filters of lists and dicts, and the methods of dicts.
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/access.h"
#include "engine/chat/jinja/natives/attribute_path.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/python_text.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

bool IsIterator(const Value& value) {
  return value.IsSequence() && !value.sequence().HasLength();
}

Result Default(Context& context, const Value& receiver, Arguments& arguments) {
  if (!receiver.IsUndefined() && (receiver.Truth() || !arguments.Truth(1))) return receiver;
  return arguments.Or(0, MakeText(context.heap, ""));
}

Result LengthOf(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  ASSIGN_OR_RETURN(const auto length, Length(context.heap, receiver));
  return Value::Integer(length);
}

// `at`: 0 or -1.
Result End(Context& context, const Value& receiver, int64_t at) {
  if (receiver.IsText() && !receiver.text().bytes.empty()) {
    return Item(context.heap, receiver, Value::Integer(at));
  }
  ASSIGN_OR_RETURN(const auto items, Iterated(context.heap, receiver));
  const std::vector<Value>& values = items.sequence().items;
  if (!values.empty()) return at == 0 ? values.front() : values.back();
  return Value::Undefined(context.heap, "there is no item, since the sequence is empty");
}

Result First(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  if (IsIterator(receiver)) {  // the others stay
    auto& iterator = receiver.As<Sequence>();
    if (iterator.position < iterator.items.size()) return iterator.items[iterator.position++];
  }
  return End(context, receiver, 0);
}

Result Last(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  if (IsIterator(receiver)) return Fail("'generator' object is not reversible");
  return End(context, receiver, -1);
}

Result List(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  ASSIGN_OR_RETURN(const auto items, Iterated(context.heap, receiver));
  return MakeList(context.heap, items.sequence().items);
}

Result Join(Context& context, const Value& receiver, Arguments& arguments) {
  const auto path = AttributePath::Parse(context.heap, arguments.Or(1, Value::None()));
  ASSIGN_OR_RETURN(const auto separator,
                   ToText(context.heap, arguments.Or(0, MakeText(context.heap, ""))));
  ASSIGN_OR_RETURN(const auto items, Iterated(context.heap, receiver));
  TextBuilder out(context.heap);
  bool first = true;
  for (const Value& item : items.sequence().items) {
    ASSIGN_OR_RETURN(const auto value, path.Of(context.heap, item));
    if (!std::exchange(first, false)) out.Append(separator.text());
    RETURN_IF_ERROR(AppendStr(context.heap, value, out));
    context.heap.Work(1);
    if (context.heap.exhausted()) return context.heap.status();
  }
  return out.Finish();
}

Result Reverse(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  if (receiver.IsText()) {
    return Slice(context.heap, receiver, Value::None(), Value::None(), Value::Integer(-1));
  }
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return Fail("argument must be iterable");
  std::vector<Value> reversed(items->sequence().items.rbegin(), items->sequence().items.rend());
  return IsIterator(receiver) ? MakeList(context.heap, std::move(reversed))
                              : MakeIterator(context.heap, std::move(reversed));
}

std::vector<Value> Pairs(Heap& heap, const Dict& dict) {
  std::vector<Value> pairs;
  pairs.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) pairs.push_back(MakeTuple(heap, {key, value}));
  return pairs;
}

Result Items(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  if (receiver.IsUndefined()) return MakeIterator(context.heap, {});
  if (!receiver.IsDict()) return Fail("Can only get item pairs from a mapping.");
  return MakeIterator(context.heap, Pairs(context.heap, receiver.dict()));
}

Result ItemsView(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  return MakeSequence(context.heap, Sequence::Form::kView, Pairs(context.heap, receiver.dict()));
}

template <bool keys>
Result HalfView(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  std::vector<Value> items;
  items.reserve(receiver.dict().entries.size());
  for (const auto& [key, value] : receiver.dict().entries) items.push_back(keys ? key : value);
  return MakeSequence(context.heap, Sequence::Form::kView, std::move(items));
}

Result Get(Context& context, const Value& receiver, Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto found, FindKey(context.heap, receiver.dict(), arguments[0]));
  return found != nullptr ? *found : arguments.Or(1, Value::None());
}

}  // namespace

std::vector<Native> ContainerFilters() {
  return {
      {"count", &LengthOf},
      {"d", &Default, {"default_value", "boolean"}},
      {"default", &Default, {"default_value", "boolean"}},
      {"first", &First},
      {"items", &Items},
      {"join", &Join, {"d", "attribute"}},
      {"last", &Last},
      {"length", &LengthOf},
      {"list", &List},
      {"reverse", &Reverse},
  };
}

std::vector<Native> DictMethods() {
  return {{"get", &Get, {"key", "default"}, 1},
          {"items", &ItemsView},
          {"keys", &HalfView<true>},
          {"values", &HalfView<false>}};
}

}  // namespace eta::jinja
