// lint: untrusted-input, fuzz-covered
// Functions of the environment: Jinja's own, and those that transformers adds.
#include <algorithm>
#include <ctime>
#include <iomanip>
#include <locale>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/python_text.h"

namespace eta::jinja {
namespace {

constexpr uint64_t kMaxRange = 100000;  // the sandbox's
constexpr size_t kMaxFormat = 200;

Result RaiseException(Context& context, const Value& /*receiver*/, Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto text, ToText(context.heap, arguments[0]));
  return Fail(text.text().bytes);
}

// The time of the place where the server stands, as Python's datetime.now() has it.
Result StrftimeNow(Context& context, const Value& /*receiver*/, Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto format, arguments.Text(0));
  if (format.text().bytes.size() > kMaxFormat) return Fail("a format of a date that is too long");
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  if (localtime_r(&now, &parts) == nullptr) return Fail("no local time");
  // Directives whose meaning does not depend on the C library or the locale, besides names.
  const std::string& spelled = format.text().bytes;
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

Result Range(Context& context, const Value& /*receiver*/, Arguments& arguments) {
  for (size_t at = 0; at < 3; ++at) {
    const Value number = arguments.Or(at, Value::Integer(0));
    if (!number.IsIntegral()) {
      return Fail("'range' takes int alone, not " + std::string(number.TypeName()));
    }
  }
  const bool only_stop = !arguments.Has(1);
  const int64_t start = only_stop ? 0 : arguments[0].integer();
  const int64_t stop = only_stop ? arguments[0].integer() : arguments[1].integer();
  const int64_t step = arguments.Has(2) ? arguments[2].integer() : 1;
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
  return MakeSequence(context.heap, Sequence::Form::kRange, std::move(items));
}

Result MakeNamespace(Context& context, const Value& /*receiver*/, Arguments& arguments) {
  if (!arguments.call().positional.empty()) {
    return NotKnown("a namespace of a dict is not known here");
  }
  auto made = MakeObject<Namespace>(context.heap, 0, 0);
  for (auto& [name, value] : arguments.call().named) made->attributes.emplace_back(name, value);
  context.heap.Keep(made);
  return Value(Kind::kNamespace, std::move(made));
}

const std::vector<Native>& Globals() {
  static const auto* const globals = new std::vector<Native>{
      {.name = "namespace", .run = &MakeNamespace, .takes_any = true},
      {"raise_exception", &RaiseException, {"message"}, 1},
      {"range", &Range, {"start", "stop", "step"}, 1},
      {"strftime_now", &StrftimeNow, {"format"}, 1},
  };
  return *globals;
}

}  // namespace

const Native* FindGlobal(std::string_view name) {
  const auto native = std::find_if(Globals().begin(), Globals().end(),
                                   [name](const Native& one) { return one.name == name; });
  return native == Globals().end() ? nullptr : &*native;
}

}  // namespace eta::jinja
