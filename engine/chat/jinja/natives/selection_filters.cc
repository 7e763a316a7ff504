// Filters that apply other filters and tests to items: map, select, reject and their kin.
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/attribute_path.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/operators.h"

namespace eta::jinja {
namespace {

// The name of a filter or test, a str, in front of the arguments that it gets.
absl::StatusOr<std::string> TakeName(Call& call, std::string_view what) {
  if (call.positional.empty()) return Fail("'" + std::string(what) + "' needs a name");
  if (!call.positional[0].IsText()) return Fail("'" + std::string(what) + "' needs a str as name");
  std::string name = call.positional[0].text().bytes;
  call.positional.erase(call.positional.begin());
  return name;
}

// map(attribute=..., default=...)
Result MapAttribute(Context& context, const Value& receiver, const Call& call) {
  Value attribute;
  Value other;
  for (const auto& [name, value] : call.named) {
    if (name != "attribute" && name != "default") {
      return Fail("'map' has no argument '" + std::string(name) + "'");
    }
    (name == "attribute" ? attribute : other) = value;
  }
  const auto path = AttributePath::Parse(context.heap, attribute);
  ASSIGN_OR_RETURN(const auto items, Iterated(context.heap, receiver));
  std::vector<Value> mapped;
  for (const Value& item : items.sequence().items) {
    ASSIGN_OR_RETURN(auto value, path.Of(context.heap, item, other));
    mapped.push_back(std::move(value));
    if (context.heap.exhausted()) return context.heap.status();
  }
  return MakeIterator(context.heap, std::move(mapped));
}

Result Map(Context& context, const Value& receiver, Arguments& arguments) {
  Call& call = arguments.call();
  if (!receiver.Truth()) return MakeIterator(context.heap, {});
  if (call.positional.empty() && !call.named.empty() && call.named[0].first == "attribute") {
    return MapAttribute(context, receiver, call);
  }
  ASSIGN_OR_RETURN(const auto name, TakeName(call, "map"));
  const auto filter = FindFilter(name);
  if (!filter) return NotKnown("filter '" + name + "' is not known here");
  ASSIGN_OR_RETURN(const auto items, Iterated(context.heap, receiver));
  std::vector<Value> mapped;
  for (const Value& item : items.sequence().items) {
    ASSIGN_OR_RETURN(auto value, RunFilter(context, *filter, item, call));
    mapped.push_back(std::move(value));
    if (context.heap.exhausted()) return context.heap.status();
  }
  return MakeIterator(context.heap, std::move(mapped));
}

template <bool keep, bool by_attribute>
Result SelectItems(Context& context, const Value& receiver, Arguments& arguments) {
  Call& call = arguments.call();
  if (!receiver.Truth()) return MakeIterator(context.heap, {});
  Value attribute = Value::None();
  if (by_attribute) {
    if (call.positional.empty()) return Fail("'selectattr' and 'rejectattr' need an attribute");
    attribute = call.positional[0];
    call.positional.erase(call.positional.begin());
  }
  const auto path = AttributePath::Parse(context.heap, attribute);
  std::optional<uint32_t> test;
  if (!call.positional.empty()) {
    ASSIGN_OR_RETURN(const auto name, TakeName(call, "select"));
    test = FindTest(name);
    if (!test) return NotKnown("test '" + name + "' is not known here");
  }
  ASSIGN_OR_RETURN(const auto items, Iterated(context.heap, receiver));
  std::vector<Value> kept;
  for (const Value& item : items.sequence().items) {
    context.heap.Work(1);
    if (context.heap.exhausted()) return context.heap.status();
    ASSIGN_OR_RETURN(auto value, path.Of(context.heap, item));
    if (test) {
      ASSIGN_OR_RETURN(value, RunTest(context, *test, value, call));
    }
    if (value.Truth() == keep) kept.push_back(item);
  }
  return MakeIterator(context.heap, std::move(kept));
}

}  // namespace

std::vector<Native> SelectionFilters() {
  return {
      {.name = "map", .run = &Map, .takes_any = true},
      {.name = "reject", .run = &SelectItems<false, false>, .takes_any = true},
      {.name = "rejectattr", .run = &SelectItems<false, true>, .takes_any = true},
      {.name = "select", .run = &SelectItems<true, false>, .takes_any = true},
      {.name = "selectattr", .run = &SelectItems<true, true>, .takes_any = true},
  };
}

}  // namespace eta::jinja
