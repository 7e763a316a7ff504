#include "engine/chat/jinja/natives/native.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "engine/base/status_macros.h"

namespace eta::jinja {
namespace {

// Filters that call filters that call filters: the deepest that anybody means.
constexpr uint32_t kMaxNesting = 8;

using Natives = std::vector<Native>;

const Natives* Sorted(std::initializer_list<Natives> lists) {
  auto* const all = new Natives();
  for (const Natives& list : lists) all->insert(all->end(), list.begin(), list.end());
  std::sort(all->begin(), all->end(),
            [](const Native& a, const Native& b) { return a.name < b.name; });
  return all;
}

const Natives& Filters() {
  static const Natives* const filters =
      Sorted({TextFilters(), ContainerFilters(), OrderFilters(), SelectionFilters()});
  return *filters;
}

const Natives& Tests() {
  static const Natives* const tests = Sorted({ValueTests()});
  return *tests;
}

const Native* Find(const Natives& natives, std::string_view name) {
  const auto native =
      std::lower_bound(natives.begin(), natives.end(), name,
                       [](const Native& a, std::string_view b) { return a.name < b; });
  return native == natives.end() || native->name != name ? nullptr : &*native;
}

std::optional<uint32_t> Index(const Natives& natives, std::string_view name) {
  const Native* native = Find(natives, name);
  if (native == nullptr) return std::nullopt;
  return static_cast<uint32_t>(native - natives.data());
}

template <size_t n>
bool IsAmong(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// What a text made by `safe` is to other filters is not known here.
constexpr std::string_view kTakeSafeText[] = {"safe",   "string",  "length", "count",
                                              "tojson", "default", "d"};
// What Python does when its result is iterated over, errors included.
constexpr std::string_view kLazy[] = {"items",  "map",        "reject", "rejectattr",
                                      "select", "selectattr", "unique"};

}  // namespace

std::optional<uint32_t> FindFilter(std::string_view name) {
  return Index(Filters(), name);
}
std::optional<uint32_t> FindTest(std::string_view name) {
  return Index(Tests(), name);
}

const Native* FindMethod(const Value& value, std::string_view name) {
  static const Natives* const text = Sorted({TextMethods()});
  static const Natives* const dict = Sorted({DictMethods()});
  if (value.IsText()) return Find(*text, name);
  return value.IsDict() ? Find(*dict, name) : nullptr;
}

Result RunNative(Context& context, const Native& native, const Value& receiver, Call call) {
  if (context.nesting >= kMaxNesting) {
    return absl::ResourceExhaustedError("filters call filters over " + std::to_string(kMaxNesting) +
                                        " deep");
  }
  context.heap.Work(1 + call.positional.size());
  ASSIGN_OR_RETURN(auto arguments, Arguments::Bind(native, std::move(call)));
  ++context.nesting;
  auto result = native.run(context, receiver, arguments);
  --context.nesting;
  return result;
}

Result RunFilter(Context& context, uint32_t filter, const Value& receiver, Call call) {
  const Native& native = Filters()[filter];
  if (receiver.IsText() && receiver.text().safe && !IsAmong(kTakeSafeText, native.name)) {
    return NotKnown("filter '" + std::string(native.name) +
                    "' of a text that 'safe' made is not known here");
  }
  auto result = RunNative(context, native, receiver, std::move(call));
  if (absl::IsInvalidArgument(result.status()) && IsAmong(kLazy, native.name)) {
    Value failing = MakeIterator(context.heap, {});
    failing.As<Sequence>().failure = std::string(result.status().message());
    return failing;
  }
  return result;
}

Result RunTest(Context& context, uint32_t test, const Value& receiver, Call call) {
  return RunNative(context, Tests()[test], receiver, std::move(call));
}

absl::Status Fail(std::string sentence) {
  return absl::InvalidArgumentError(sentence);
}
absl::Status NotKnown(std::string sentence) {
  return absl::UnimplementedError(sentence);
}

absl::StatusOr<Arguments> Arguments::Bind(const Native& native, Call call) {
  const auto what = [&] { return "'" + std::string(native.name) + "'"; };
  Arguments arguments;
  arguments.native_ = &native;
  arguments.values_.resize(native.parameters.size());
  if (native.takes_any) {
    arguments.call_ = std::move(call);
    return arguments;
  }
  if (call.positional.size() > native.parameters.size()) {
    return Fail(what() + " takes at most " + std::to_string(native.parameters.size()) +
                " arguments");
  }
  std::move(call.positional.begin(), call.positional.end(), arguments.values_.begin());
  for (auto& [name, value] : call.named) {
    const auto parameter = std::find(native.parameters.begin(), native.parameters.end(), name);
    if (parameter == native.parameters.end()) {
      return Fail(what() + " has no argument '" + std::string(name) + "'");
    }
    auto& slot = arguments.values_[static_cast<size_t>(parameter - native.parameters.begin())];
    if (slot) return Fail(what() + " has argument '" + std::string(name) + "' twice");
    slot = std::move(value);
  }
  for (size_t at = 0; at < native.parameters.size(); ++at) {
    const bool given = arguments.values_[at].has_value();
    if (given ? at < native.known : at >= native.required) continue;
    const std::string argument = "argument '" + std::string(native.parameters[at]) + "'";
    if (!given) return Fail(what() + " needs " + argument);
    return NotKnown(argument + " of " + what() + " is not known here");
  }
  return arguments;
}

absl::StatusOr<int64_t> Arguments::Integer(size_t at, int64_t other) const {
  if (!Has(at)) return other;
  if (values_[at]->IsIntegral()) return values_[at]->integer();
  return Fail("argument '" + std::string(native_->parameters[at]) + "' of '" +
              std::string(native_->name) + "' must be an int, not " +
              std::string(values_[at]->TypeName()));
}

absl::StatusOr<Value> Arguments::Text(size_t at) const {
  if (values_[at]->IsText()) return *values_[at];
  return Fail("argument '" + std::string(native_->parameters[at]) + "' of '" +
              std::string(native_->name) + "' must be a str, not " +
              std::string(values_[at]->TypeName()));
}

}  // namespace eta::jinja
