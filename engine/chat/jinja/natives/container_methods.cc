// Methods of dicts, lists, tuples, `loop` and cyclers.
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/operators.h"

namespace eta::jinja {
namespace {

using Result = absl::StatusOr<Value>;

enum class View { kItems, kKeys, kValues };

template <View view>
Result DictView(Context& context, const Value& receiver, Call& call) {
  static constexpr std::string_view kNames[] = {"dict_items", "dict_keys", "dict_values"};
  const auto arguments = Arguments::Bind(kNames[static_cast<size_t>(view)], call, {});
  if (!arguments.ok()) return arguments.status();
  std::vector<Value> items;
  items.reserve(receiver.dict().entries.size());
  for (const auto& [key, value] : receiver.dict().entries) {
    items.push_back(view == View::kItems  ? MakeTuple(context.heap, {key, value})
                    : view == View::kKeys ? key
                                          : value);
  }
  Value result = MakeSequence(context.heap, Sequence::Form::kView, std::move(items));
  result.As<Sequence>().view = kNames[static_cast<size_t>(view)];
  return result;
}

Result Get(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("get", call, {"key", "default"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto found = FindKey(context.heap, receiver.dict(), (*arguments)[0]);
  if (!found.ok()) return found.status();
  return *found != nullptr ? **found : arguments->Or(1, Value::None());
}

Result CountOf(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("count", call, {"value"}, 1);
  if (!arguments.ok()) return arguments.status();
  int64_t count = 0;
  for (const Value& item : receiver.sequence().items) {
    count += Equal(context.heap, item, (*arguments)[0]) ? 1 : 0;
  }
  return Value::Integer(count);
}

Result IndexOf(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("index", call, {"value"}, 1);
  if (!arguments.ok()) return arguments.status();
  const std::vector<Value>& items = receiver.sequence().items;
  for (size_t at = 0; at < items.size(); ++at) {
    if (Equal(context.heap, items[at], (*arguments)[0])) {
      return Value::Integer(static_cast<int64_t>(at));
    }
  }
  return Fail("a value is not in the list");
}

Result Cycle(Context& /*context*/, const Value& receiver, Call& call) {
  if (call.positional.empty()) return Fail("no items for cycling given");
  return call.positional[receiver.As<Loop>().index0 % call.positional.size()];
}

Result Changed(Context& context, const Value& receiver, Call& call) {
  auto& loop = receiver.As<Loop>();
  for (const Value& value : call.positional) {
    // What is kept must not keep the loop.
    if (value.object() != nullptr && !value.IsText()) {
      return NotKnown("loop.changed() of a " + std::string(value.TypeName()) +
                      " is not known here");
    }
  }
  bool same = loop.asked && loop.changed.size() == call.positional.size();
  for (size_t at = 0; same && at < loop.changed.size(); ++at) {
    same = Equal(context.heap, loop.changed[at], call.positional[at]);
  }
  loop.asked = true;
  loop.changed = call.positional;
  return Value::Boolean(!same);
}

Result Next(Context& /*context*/, const Value& receiver, Call& /*call*/) {
  auto& cycler = receiver.As<Cycler>();
  const std::vector<Value>& items = cycler.items.sequence().items;
  const size_t at = cycler.position;
  cycler.position = (at + 1) % items.size();
  return items[at];
}

Result Reset(Context& /*context*/, const Value& receiver, Call& /*call*/) {
  receiver.As<Cycler>().position = 0;
  return Value::None();
}

}  // namespace

std::vector<Native> DictMethods() {
  return {{"get", &Get},
          {"items", &DictView<View::kItems>},
          {"keys", &DictView<View::kKeys>},
          {"values", &DictView<View::kValues>}};
}
std::vector<Native> ListMethods() {
  return {{"count", &CountOf}, {"index", &IndexOf}};
}
std::vector<Native> LoopMethods() {
  return {{"changed", &Changed}, {"cycle", &Cycle}};
}
std::vector<Native> CyclerMethods() {
  return {{"next", &Next}, {"reset", &Reset}};
}

}  // namespace eta::jinja
