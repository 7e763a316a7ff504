// Filters that apply other filters and tests to items: map, select, reject and their kin.
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/access.h"
#include "engine/chat/jinja/natives/attribute_path.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/operators.h"

namespace eta::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// The first argument, a str, and the call that the others make.
absl::StatusOr<std::string> TakeName(Call& call, size_t at, std::string_view what) {
  if (call.positional.size() <= at) return Fail("'" + std::string(what) + "' needs a name");
  if (!call.positional[at].IsText()) return Fail("'" + std::string(what) + "' needs a str as name");
  std::string name = call.positional[at].text().bytes;
  call.positional.erase(call.positional.begin(),
                        call.positional.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  return name;
}

Result MapAttribute(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("map", call, {"attribute", "default"});
  if (!arguments.ok()) return arguments.status();
  const auto path = AttributePath::Parse(context.heap, (*arguments)[0]);
  if (!path.ok()) return path.status();
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  std::vector<Value> mapped;
  for (const Value& item : items->sequence().items) {
    auto value = path->Of(context.heap, item, arguments->Or(1, Value()));
    if (!value.ok()) return value.status();
    mapped.push_back(*std::move(value));
    if (context.heap.exhausted()) return context.heap.status();
  }
  return MakeIterator(context.heap, std::move(mapped));
}

Result Map(Context& context, const Value& receiver, Call& call) {
  if (!receiver.Truth()) return MakeIterator(context.heap, {});
  if (call.positional.empty() && !call.named.empty() && call.named[0].first == "attribute") {
    return MapAttribute(context, receiver, call);
  }
  const auto name = TakeName(call, 0, "map");
  if (!name.ok()) return name.status();
  const auto filter = FindFilter(*name);
  if (!filter) return NotKnown("filter '" + *name + "' is not known here");
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  std::vector<Value> mapped;
  for (const Value& item : items->sequence().items) {
    Call again = call;
    auto value = RunFilter(context, *filter, item, again);
    if (!value.ok()) return value.status();
    mapped.push_back(*std::move(value));
    if (context.heap.exhausted()) return context.heap.status();
  }
  return MakeIterator(context.heap, std::move(mapped));
}

template <bool keep, bool by_attribute>
Result SelectItems(Context& context, const Value& receiver, Call& call) {
  if (!receiver.Truth()) return MakeIterator(context.heap, {});
  Value attribute = Value::None();
  if (by_attribute) {
    if (call.positional.empty()) return Fail("'selectattr' and 'rejectattr' need an attribute");
    attribute = call.positional[0];
    call.positional.erase(call.positional.begin());
  }
  const auto path = AttributePath::Parse(context.heap, attribute);
  if (!path.ok()) return path.status();
  std::optional<uint32_t> test;
  if (!call.positional.empty()) {
    const auto name = TakeName(call, 0, "select");
    if (!name.ok()) return name.status();
    test = FindTest(*name);
    if (!test) return NotKnown("test '" + *name + "' is not known here");
  }
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  std::vector<Value> kept;
  for (const Value& item : items->sequence().items) {
    context.heap.Work(1);
    if (context.heap.exhausted()) return context.heap.status();
    auto value = path->Of(context.heap, item);
    if (!value.ok()) return value.status();
    if (test) {
      Call again = call;
      value = RunTest(context, *test, *value, again);
      if (!value.ok()) return value.status();
    }
    if (value->Truth() == keep) kept.push_back(item);
  }
  return MakeIterator(context.heap, std::move(kept));
}

}  // namespace

std::vector<Native> SelectionFilters() {
  return {{"map", &Map},
          {"reject", &SelectItems<false, false>},
          {"rejectattr", &SelectItems<false, true>},
          {"select", &SelectItems<true, false>},
          {"selectattr", &SelectItems<true, true>}};
}

}  // namespace eta::jinja
