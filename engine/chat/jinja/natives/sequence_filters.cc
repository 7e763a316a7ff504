// lint: untrusted-input, fuzz-covered
// Filters of lists and dicts.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/natives/access.h"
#include "engine/chat/jinja/natives/attribute_path.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/python_text.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr int64_t kMaxGroup = 100000;  // items of a slice or batch, as of a range

Result Default(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("default", call, {"default_value", "boolean"});
  if (!arguments.ok()) return arguments.status();
  if (receiver.IsUndefined() || (arguments->Truth(1) && !receiver.Truth())) {
    return arguments->Has(0) ? (*arguments)[0] : MakeText(context.heap, "");
  }
  return receiver;
}

Result First(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("first", call, {});
  if (!arguments.ok()) return arguments.status();
  if (receiver.IsText() && !receiver.text().bytes.empty()) {
    return Item(context.heap, receiver, Value::Integer(0));
  }
  if (receiver.IsSequence() && !receiver.sequence().HasLength()) {
    auto& iterator = receiver.As<Sequence>();
    if (iterator.position < iterator.items.size()) return iterator.items[iterator.position++];
  }
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  if (!items->sequence().items.empty()) return items->sequence().items.front();
  return Value::Undefined(context.heap, "No first item, sequence was empty.");
}

// What reversed() takes.
absl::Status CheckReversible(const Value& value) {
  if (value.IsSequence() && !value.sequence().HasLength()) {
    return Fail("'generator' object is not reversible");
  }
  return absl::OkStatus();
}

Result Last(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("last", call, {});
  if (!arguments.ok()) return arguments.status();
  if (receiver.IsText() && !receiver.text().bytes.empty()) {
    return Item(context.heap, receiver, Value::Integer(-1));
  }
  RETURN_IF_ERROR(CheckReversible(receiver));
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  if (!items->sequence().items.empty()) return items->sequence().items.back();
  return Value::Undefined(context.heap, "No last item, sequence was empty.");
}

Result List(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("list", call, {});
  if (!arguments.ok()) return arguments.status();
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  return MakeList(context.heap, items->sequence().items);
}

Result Join(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("join", call, {"d", "attribute"});
  if (!arguments.ok()) return arguments.status();
  const auto path = AttributePath::Parse(context.heap, arguments->Or(1, Value::None()));
  if (!path.ok()) return path.status();
  const auto separator =
      ToText(context.heap, arguments->Has(0) ? (*arguments)[0] : MakeText(context.heap, ""));
  if (!separator.ok()) return separator.status();
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  TextBuilder out(context.heap);
  bool first = true;
  for (const Value& item : items->sequence().items) {
    const auto value = path->Of(context.heap, item);
    if (!value.ok()) return value.status();
    if (!std::exchange(first, false)) out.Append(separator->text());
    RETURN_IF_ERROR(AppendStr(context.heap, *value, out));
    context.heap.Work(1);
    if (context.heap.exhausted()) return context.heap.status();
  }
  return out.Finish();
}

Result Items(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("items", call, {});
  if (!arguments.ok()) return arguments.status();
  if (receiver.IsUndefined()) return MakeIterator(context.heap, {});
  if (!receiver.IsDict()) return Fail("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : receiver.dict().entries) {
    items.push_back(MakeTuple(context.heap, {key, value}));
  }
  return MakeIterator(context.heap, std::move(items));
}

Result Reverse(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("reverse", call, {});
  if (!arguments.ok()) return arguments.status();
  if (receiver.IsText()) {
    return Slice(context.heap, receiver, Value::None(), Value::None(), Value::Integer(-1));
  }
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return Fail("argument must be iterable");
  std::vector<Value> reversed(items->sequence().items.rbegin(), items->sequence().items.rend());
  const bool was_iterator = receiver.IsSequence() && !receiver.sequence().HasLength();
  return was_iterator ? MakeList(context.heap, std::move(reversed))
                      : MakeIterator(context.heap, std::move(reversed));
}

// Items with what they are sorted by.
struct Keyed {
  Value item;
  Value key;
};

absl::Status SortByKey(Context& context, std::vector<Keyed>& items, bool reverse) {
  absl::Status status;
  const auto before = [&](const Keyed& a, const Keyed& b) {
    if (!status.ok() || context.heap.exhausted()) return false;
    const auto less = reverse ? Less(context.heap, b.key, a.key) : Less(context.heap, a.key, b.key);
    if (!less.ok()) status = less.status();
    return less.ok() && *less;
  };
  std::stable_sort(items.begin(), items.end(), before);
  RETURN_IF_ERROR(context.heap.status());
  return status;
}

Value ItemsOf(Context& context, std::vector<Keyed> keyed) {
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& one : keyed) items.push_back(std::move(one.item));
  return MakeList(context.heap, std::move(items));
}

Result DictSort(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("dictsort", call, {"case_sensitive", "by", "reverse"});
  if (!arguments.ok()) return arguments.status();
  if (receiver.IsUndefined()) return Fail(receiver.why());
  if (!receiver.IsDict()) return Fail("'dictsort' needs a dict");
  std::string by = "key";
  if (arguments->Has(1)) {
    const auto text = arguments->Text(1);
    if (!text.ok()) return text.status();
    by = text->text().bytes;
  }
  if (by != "key" && by != "value") return Fail("You can only sort by either \"key\" or \"value\"");
  std::vector<Keyed> items;
  for (const auto& [key, value] : receiver.dict().entries) {
    const Value& sorted_by = by == "key" ? key : value;
    items.push_back({MakeTuple(context.heap, {key, value}),
                     arguments->Truth(0) ? sorted_by : WithoutCase(context.heap, sorted_by)});
  }
  RETURN_IF_ERROR(SortByKey(context, items, arguments->Truth(2)));
  return ItemsOf(context, std::move(items));
}

// "a,b.c": several paths.
absl::StatusOr<std::vector<AttributePath>> Paths(Context& context, const Value& attribute) {
  std::vector<AttributePath> paths;
  if (!attribute.IsText()) {
    auto path = AttributePath::Parse(context.heap, attribute);
    if (!path.ok()) return path.status();
    paths.push_back(*std::move(path));
    return paths;
  }
  const std::string_view text = attribute.text().bytes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    auto path =
        AttributePath::Parse(context.heap, SubText(context.heap, attribute.text(), begin, end));
    if (!path.ok()) return path.status();
    paths.push_back(*std::move(path));
    begin = end + 1;
  }
  return paths;
}

Result Sort(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("sort", call, {"reverse", "case_sensitive", "attribute"});
  if (!arguments.ok()) return arguments.status();
  const auto paths = Paths(context, arguments->Or(2, Value::None()));
  if (!paths.ok()) return paths.status();
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  std::vector<Keyed> keyed;
  for (const Value& item : items->sequence().items) {
    std::vector<Value> key;
    for (const AttributePath& path : *paths) {
      const auto part = path.Of(context.heap, item);
      if (!part.ok()) return part.status();
      key.push_back(arguments->Truth(1) ? *part : WithoutCase(context.heap, *part));
    }
    keyed.push_back({item, MakeList(context.heap, std::move(key))});
    if (context.heap.exhausted()) return context.heap.status();
  }
  RETURN_IF_ERROR(SortByKey(context, keyed, arguments->Truth(0)));
  return ItemsOf(context, std::move(keyed));
}

// Items with one key each, by an attribute, without regard to case unless it is asked for.
absl::StatusOr<std::vector<Keyed>> KeyedItems(Context& context, const Value& receiver,
                                              const Value& attribute, bool case_sensitive,
                                              const Value& other = Value()) {
  const auto path = AttributePath::Parse(context.heap, attribute);
  if (!path.ok()) return path.status();
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  std::vector<Keyed> keyed;
  for (const Value& item : items->sequence().items) {
    const auto key = path->Of(context.heap, item, other);
    if (!key.ok()) return key.status();
    keyed.push_back({item, case_sensitive ? *key : WithoutCase(context.heap, *key)});
    if (context.heap.exhausted()) return context.heap.status();
  }
  return keyed;
}

// What a set takes, tuples aside.
bool IsKey(const Value& value) {
  return !value.IsDict() &&
         !(value.IsSequence() && (value.sequence().form == Sequence::Form::kList ||
                                  value.sequence().form == Sequence::Form::kTuple));
}

Result Unique(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("unique", call, {"case_sensitive", "attribute"});
  if (!arguments.ok()) return arguments.status();
  auto keyed = KeyedItems(context, receiver, arguments->Or(1, Value::None()), arguments->Truth(0));
  if (!keyed.ok()) return keyed.status();
  std::vector<Value> seen;
  std::vector<Value> unique;
  for (Keyed& one : *keyed) {
    const bool tuple = one.key.IsSequence() && one.key.sequence().form == Sequence::Form::kTuple;
    const bool hashable =
        tuple ? std::all_of(one.key.sequence().items.begin(), one.key.sequence().items.end(), IsKey)
              : IsKey(one.key);
    if (!hashable) return Fail("unhashable type: '" + std::string(one.key.TypeName()) + "'");
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
Result Extreme(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("min", call, {"case_sensitive", "attribute"});
  if (!arguments.ok()) return arguments.status();
  auto keyed = KeyedItems(context, receiver, arguments->Or(1, Value::None()), arguments->Truth(0));
  if (!keyed.ok()) return keyed.status();
  if (keyed->empty()) {
    return Value::Undefined(context.heap, "No aggregated item, sequence was empty.");
  }
  const Keyed* best = &keyed->front();
  for (const Keyed& one : *keyed) {
    if (&one == best) continue;
    const auto better =
        greatest ? Less(context.heap, best->key, one.key) : Less(context.heap, one.key, best->key);
    if (!better.ok()) return better.status();
    if (*better) best = &one;
  }
  return best->item;
}

Result Sum(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("sum", call, {"attribute", "start"});
  if (!arguments.ok()) return arguments.status();
  auto keyed = KeyedItems(context, receiver, arguments->Or(0, Value::None()), true);
  if (!keyed.ok()) return keyed.status();
  Value sum = arguments->Or(1, Value::Integer(0));
  if (sum.IsText()) return Fail("sum() can't sum strings");
  for (const Keyed& one : *keyed) {
    auto next = Binary(context.heap, TokenKind::kAdd, sum, one.key);
    if (!next.ok()) return next.status();
    sum = *std::move(next);
    if (context.heap.exhausted()) return context.heap.status();
  }
  return sum;
}

Result GroupBy(Context& context, const Value& receiver, Call& call) {
  const auto arguments =
      Arguments::Bind("groupby", call, {"attribute", "default", "case_sensitive"}, 1);
  if (!arguments.ok()) return arguments.status();
  const bool case_sensitive = arguments->Truth(2);
  const Value other = arguments->Or(1, Value());
  auto keyed = KeyedItems(context, receiver, (*arguments)[0], case_sensitive, other);
  if (!keyed.ok()) return keyed.status();
  RETURN_IF_ERROR(SortByKey(context, *keyed, false));
  const auto path = AttributePath::Parse(context.heap, (*arguments)[0]);
  if (!path.ok()) return path.status();
  std::vector<Value> groups;
  for (size_t begin = 0; begin < keyed->size();) {
    std::vector<Value> items;
    size_t end = begin;
    while (end < keyed->size() && Equal(context.heap, (*keyed)[end].key, (*keyed)[begin].key)) {
      items.push_back((*keyed)[end++].item);
    }
    if (context.heap.exhausted()) return context.heap.status();
    const auto key = path->Of(context.heap, (*keyed)[begin].item, other);
    if (!key.ok()) return key.status();
    groups.push_back(MakeTuple(context.heap, {*key, MakeList(context.heap, std::move(items))}));
    begin = std::max(end, begin + 1);  // a number that is none equals nothing
  }
  return MakeList(context.heap, std::move(groups));
}

Result Batch(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("batch", call, {"linecount", "fill_with"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto size = arguments->Integer(0, 1);
  if (!size.ok()) return size.status();
  if (*size < 1 || *size > kMaxGroup) return Fail("'batch' needs a count of 1 to 100000");
  const auto items = Iterated(context.heap, receiver);
  if (!items.ok()) return items.status();
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (const Value& item : items->sequence().items) {
    if (static_cast<int64_t>(batch.size()) == *size) {
      batches.push_back(MakeList(context.heap, std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const Value fill = arguments->Or(1, Value::None());
    if (!fill.Is(Kind::kNone)) batch.resize(static_cast<size_t>(*size), fill);
    batches.push_back(MakeList(context.heap, std::move(batch)));
  }
  return MakeIterator(context.heap, std::move(batches));
}

Result SliceFilter(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("slice", call, {"slices", "fill_with"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto count = arguments->Integer(0, 1);
  if (!count.ok()) return count.status();
  if (*count < 1 || *count > kMaxGroup) return Fail("'slice' needs a count of 1 to 100000");
  const auto list = Iterated(context.heap, receiver);
  if (!list.ok()) return list.status();
  const std::vector<Value>& items = list->sequence().items;
  const auto slices = static_cast<size_t>(*count);
  const size_t each = items.size() / slices;
  const size_t longer = items.size() % slices;
  const Value fill = arguments->Or(1, Value::None());
  std::vector<Value> out;
  size_t begin = 0;
  for (size_t i = 0; i < slices; ++i) {
    const size_t end = begin + each + (i < longer ? 1 : 0);
    std::vector<Value> slice(items.begin() + static_cast<std::ptrdiff_t>(begin),
                             items.begin() + static_cast<std::ptrdiff_t>(end));
    if (!fill.Is(Kind::kNone) && i >= longer) slice.push_back(fill);
    out.push_back(MakeList(context.heap, std::move(slice)));
    begin = end;
  }
  return MakeIterator(context.heap, std::move(out));
}

}  // namespace

std::vector<Native> SequenceFilters() {
  return {
      {"batch", &Batch},       {"d", &Default},         {"default", &Default},
      {"dictsort", &DictSort}, {"first", &First},       {"groupby", &GroupBy},
      {"items", &Items},       {"join", &Join},         {"last", &Last},
      {"list", &List},         {"max", &Extreme<true>}, {"min", &Extreme<false>},
      {"reverse", &Reverse},   {"slice", &SliceFilter}, {"sort", &Sort},
      {"sum", &Sum},           {"unique", &Unique},
  };
}

}  // namespace eta::jinja
