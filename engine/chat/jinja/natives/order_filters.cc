// lint: untrusted-input, fuzz-covered
// Filters that compare items: dictsort, sort, unique, min, max.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/attribute_path.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/natives/text_parts.h"
#include "engine/chat/jinja/values/operators.h"

namespace eta::jinja {
namespace {

// An item with what it is compared by.
struct Keyed {
  Value item;
  Value key;
};

// A text in lower case; another value as it is.
Value WithoutCase(Heap& heap, const Value& value) {
  return value.IsText() ? InCase(heap, value.text(), Casing::kLower) : value;
}

// By an attribute, without regard to case unless it is asked for.
absl::StatusOr<std::vector<Keyed>> KeyedItems(Context& context, const Value& receiver,
                                              const Value& attribute, bool case_sensitive) {
  const auto path = AttributePath::Parse(context.heap, attribute);
  ASSIGN_OR_RETURN(const auto items, Iterated(context.heap, receiver));
  std::vector<Keyed> keyed;
  for (const Value& item : items.sequence().items) {
    ASSIGN_OR_RETURN(const auto key, path.Of(context.heap, item));
    keyed.push_back({item, case_sensitive ? key : WithoutCase(context.heap, key)});
    if (context.heap.exhausted()) return context.heap.status();
  }
  return keyed;
}

Result Sorted(Context& context, std::vector<Keyed> keyed, bool reverse) {
  absl::Status status;
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    if (!status.ok() || context.heap.exhausted()) return false;
    const auto less = reverse ? Less(context.heap, b.key, a.key) : Less(context.heap, a.key, b.key);
    if (!less.ok()) status = less.status();
    return less.ok() && *less;
  });
  RETURN_IF_ERROR(context.heap.status());
  RETURN_IF_ERROR(status);
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& one : keyed) items.push_back(std::move(one.item));
  return MakeList(context.heap, std::move(items));
}

Result DictSort(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  if (receiver.IsUndefined()) return Fail(receiver.why());
  if (!receiver.IsDict()) return Fail("'dictsort' needs a dict");
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : receiver.dict().entries) {
    keyed.push_back({MakeTuple(context.heap, {key, value}), WithoutCase(context.heap, key)});
  }
  return Sorted(context, std::move(keyed), false);
}

Result Sort(Context& context, const Value& receiver, Arguments& arguments) {
  const Value attribute = arguments.Or(2, Value::None());
  if (attribute.IsText() && attribute.text().bytes.find(',') != std::string::npos) {
    return NotKnown("'sort' by several attributes is not known here");
  }
  ASSIGN_OR_RETURN(auto keyed, KeyedItems(context, receiver, attribute, arguments.Truth(1)));
  return Sorted(context, std::move(keyed), arguments.Truth(0));
}

bool IsPart(const Value& value) {
  return !value.IsDict() &&
         !(value.IsSequence() && (value.sequence().form == Sequence::Form::kList ||
                                  value.sequence().form == Sequence::Form::kTuple));
}

// What a set takes, tuples of tuples aside.
bool IsHashable(const Value& value) {
  if (!value.IsSequence() || value.sequence().form != Sequence::Form::kTuple) return IsPart(value);
  const std::vector<Value>& items = value.sequence().items;
  return std::all_of(items.begin(), items.end(), IsPart);
}

Result Unique(Context& context, const Value& receiver, Arguments& arguments) {
  ASSIGN_OR_RETURN(auto keyed, KeyedItems(context, receiver, arguments.Or(1, Value::None()),
                                          arguments.Truth(0)));
  std::vector<Value> seen;
  std::vector<Value> unique;
  for (Keyed& one : keyed) {
    if (!IsHashable(one.key)) {
      return Fail("unhashable type: '" + std::string(one.key.TypeName()) + "'");
    }
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return Equal(context.heap, other, one.key);
    });
    if (context.heap.exhausted()) return context.heap.status();
    if (known) continue;
    seen.push_back(one.key);
    unique.push_back(std::move(one.item));
  }
  return MakeIterator(context.heap, std::move(unique));
}

template <bool greatest>
Result Extreme(Context& context, const Value& receiver, Arguments& arguments) {
  ASSIGN_OR_RETURN(auto keyed, KeyedItems(context, receiver, arguments.Or(1, Value::None()),
                                          arguments.Truth(0)));
  if (keyed.empty()) {
    return Value::Undefined(context.heap, "No aggregated item, sequence was empty.");
  }
  const Keyed* best = &keyed.front();
  for (const Keyed& one : keyed) {
    if (&one == best) continue;
    ASSIGN_OR_RETURN(const auto better, greatest ? Less(context.heap, best->key, one.key)
                                                 : Less(context.heap, one.key, best->key));
    if (better) best = &one;
  }
  return best->item;
}

}  // namespace

std::vector<Native> OrderFilters() {
  return {
      {"dictsort", &DictSort, {"case_sensitive", "by", "reverse"}, 0, 0},
      {"max", &Extreme<true>, {"case_sensitive", "attribute"}},
      {"min", &Extreme<false>, {"case_sensitive", "attribute"}},
      {"sort", &Sort, {"reverse", "case_sensitive", "attribute"}},
      {"unique", &Unique, {"case_sensitive", "attribute"}},
  };
}

}  // namespace eta::jinja
