// lint: untrusted-input, fuzz-covered
// Functions of the environment: Jinja's own, and those that transformers adds.
#include <algorithm>
#include <array>
#include <ctime>
#include <iomanip>
#include <locale>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/checked.h"
#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/python_text.h"

namespace eta::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr uint64_t kMaxRange = 100000;  // the sandbox's
constexpr size_t kMaxFormat = 200;

Result RaiseException(Context& context, const Value& /*receiver*/, Call& call) {
  const auto arguments = Arguments::Bind("raise_exception", call, {"message"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto text = ToText(context.heap, (*arguments)[0]);
  if (!text.ok()) return text.status();
  return Fail(text->text().bytes);
}

// The time of the place where the server stands, as Python's datetime.now() has it.
Result StrftimeNow(Context& context, const Value& /*receiver*/, Call& call) {
  const auto arguments = Arguments::Bind("strftime_now", call, {"format"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto format = arguments->Text(0);
  if (!format.ok()) return format.status();
  if (format->text().bytes.size() > kMaxFormat) return Fail("a format of a date that is too long");
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  if (localtime_r(&now, &parts) == nullptr) return Fail("no local time");
  // Directives whose meaning does not depend on the C library or the locale, besides names.
  const std::string& spelled = format->text().bytes;
  for (size_t at = spelled.find('%'); at != std::string::npos; at = spelled.find('%', at + 2)) {
    static constexpr std::string_view kKnown = "aAbBdHIjmMpSUwWyYcxX%";
    if (at + 1 >= spelled.size() || kKnown.find(spelled[at + 1]) == std::string_view::npos) {
      return NotKnown("a directive of strftime_now other than %" + std::string(kKnown) +
                      " is not known here");
    }
  }
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::put_time(&parts, spelled.c_str());
  return MakeText(context.heap, out.str());
}

Result Range(Context& context, const Value& /*receiver*/, Call& call) {
  const auto arguments = Arguments::Bind("range", call, {"start", "stop", "step"}, 1);
  if (!arguments.ok()) return arguments.status();
  for (size_t at = 0; at < 3; ++at) {
    if (arguments->Has(at) && !(*arguments)[at].IsIntegral()) {
      return Fail("'range' takes int alone, not " + std::string((*arguments)[at].TypeName()));
    }
  }
  const bool only_stop = !arguments->Has(1);
  const int64_t start = only_stop ? 0 : (*arguments)[0].integer();
  const int64_t stop = only_stop ? (*arguments)[0].integer() : (*arguments)[1].integer();
  const int64_t step = arguments->Has(2) ? (*arguments)[2].integer() : 1;
  if (step == 0) return Fail("range() arg 3 must not be zero");
  uint64_t count = 0;
  if (step > 0 ? start < stop : start > stop) {
    const uint64_t span = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                   : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    const uint64_t stride =
        step > 0 ? static_cast<uint64_t>(step) : ~static_cast<uint64_t>(step) + 1;
    count = (span - 1) / stride + 1;
  }
  if (count > kMaxRange) {
    return absl::ResourceExhaustedError("a range of over " + std::to_string(kMaxRange) + " items");
  }
  std::vector<Value> items;
  items.reserve(count);
  context.heap.Work(count / 4);
  int64_t at = start;
  for (uint64_t i = 0; i < count; ++i) {
    items.push_back(Value::Integer(at));
    if (i + 1 < count) at += step;
  }
  Value range = MakeSequence(context.heap, Sequence::Form::kRange, std::move(items));
  range.As<Sequence>().label = "range(" + std::to_string(start) + ", " + std::to_string(stop) +
                               (step == 1 ? "" : ", " + std::to_string(step)) + ")";
  return range;
}

// A dict's entries or a list of pairs, then the named arguments.
absl::StatusOr<std::vector<std::pair<Value, Value>>> Entries(Context& context, Call& call) {
  std::vector<std::pair<Value, Value>> entries;
  if (call.positional.size() > 1) return Fail("'dict' and 'namespace' take one argument at most");
  if (!call.positional.empty()) {
    const Value& from = call.positional[0];
    if (from.IsDict()) {
      entries = from.dict().entries;
    } else {
      const auto items = Iterated(context.heap, from);
      if (!items.ok()) return items.status();
      for (const Value& item : items->sequence().items) {
        const auto pair = Iterated(context.heap, item);
        if (!pair.ok()) return pair.status();
        if (pair->sequence().items.size() != 2) return Fail("a dict is made of pairs");
        RETURN_IF_ERROR(
            PutKey(context.heap, entries, pair->sequence().items[0], pair->sequence().items[1]));
        if (context.heap.exhausted()) return context.heap.status();
      }
    }
  }
  for (auto& [name, value] : call.named) {
    RETURN_IF_ERROR(
        PutKey(context.heap, entries, MakeText(context.heap, std::string(name)), value));
  }
  return entries;
}

Result MakeDictOf(Context& context, const Value& /*receiver*/, Call& call) {
  auto entries = Entries(context, call);
  if (!entries.ok()) return entries.status();
  return MakeDict(context.heap, *std::move(entries));
}

Result MakeNamespace(Context& context, const Value& /*receiver*/, Call& call) {
  auto entries = Entries(context, call);
  if (!entries.ok()) return entries.status();
  auto made = MakeObject<Namespace>(context.heap, 0, 0);
  for (auto& [key, value] : *entries) {
    if (!key.IsText()) return Fail("names in a namespace are str alone");
    made->attributes.emplace_back(key.text().bytes, std::move(value));
  }
  context.heap.Keep(made);
  return Value(Kind::kNamespace, std::move(made));
}

Result MakeJoiner(Context& context, const Value& /*receiver*/, Call& call) {
  const auto arguments = Arguments::Bind("joiner", call, {"sep"});
  if (!arguments.ok()) return arguments.status();
  Value separator = arguments->Has(0) ? (*arguments)[0] : MakeOwnText(context.heap, ", ");
  auto made = MakeObject<Joiner>(context.heap, 0, separator.depth() + 1);
  made->separator = std::move(separator);
  return Value(Kind::kJoiner, std::move(made));
}

Result MakeCycler(Context& context, const Value& /*receiver*/, Call& call) {
  if (call.positional.empty()) return Fail("at least one item has to be provided");
  Value items = MakeTuple(context.heap, call.positional);
  auto made = MakeObject<Cycler>(context.heap, 0, items.depth() + 1);
  made->items = std::move(items);
  return Value(Kind::kCycler, std::move(made));
}

constexpr std::array<Native, 7> kGlobals = {{
    {"cycler", &MakeCycler},
    {"dict", &MakeDictOf},
    {"joiner", &MakeJoiner},
    {"namespace", &MakeNamespace},
    {"raise_exception", &RaiseException},
    {"range", &Range},
    {"strftime_now", &StrftimeNow},
}};

}  // namespace

const Native* FindGlobal(std::string_view name) {
  const auto* const native = std::find_if(kGlobals.begin(), kGlobals.end(),
                                          [name](const Native& one) { return one.name == name; });
  return native == kGlobals.end() ? nullptr : native;
}

}  // namespace eta::jinja
