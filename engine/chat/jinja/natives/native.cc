#include "engine/chat/jinja/natives/native.h"

#include <algorithm>

namespace eta::jinja {
namespace {

// Filters that call filters that call filters: the deepest that anybody means.
constexpr uint32_t kMaxNesting = 8;

std::vector<Native> Joined(std::initializer_list<std::vector<Native>> lists) {
  std::vector<Native> all;
  for (const std::vector<Native>& list : lists) all.insert(all.end(), list.begin(), list.end());
  std::sort(all.begin(), all.end(),
            [](const Native& a, const Native& b) { return a.name < b.name; });
  return all;
}

const std::vector<Native>& Filters() {
  static const auto* const filters = new std::vector<Native>(
      Joined({TextFilters(), SequenceFilters(), SelectionFilters(), NumberFilters()}));
  return *filters;
}

const std::vector<Native>& Tests() {
  static const auto* const tests = new std::vector<Native>(Joined({ValueTests()}));
  return *tests;
}

const Native* Find(const std::vector<Native>& natives, std::string_view name) {
  const auto native =
      std::lower_bound(natives.begin(), natives.end(), name,
                       [](const Native& a, std::string_view b) { return a.name < b; });
  return native == natives.end() || native->name != name ? nullptr : &*native;
}

std::optional<uint32_t> Index(const std::vector<Native>& natives, std::string_view name) {
  const Native* native = Find(natives, name);
  if (native == nullptr) return std::nullopt;
  return static_cast<uint32_t>(native - natives.data());
}

// What a text made by `safe` or `escape` is to other filters is not known here.
bool TakesSafeText(std::string_view filter) {
  static constexpr std::string_view kTaking[] = {"safe",    "escape", "e",        "forceescape",
                                                 "string",  "length", "count",    "tojson",
                                                 "default", "d",      "wordcount"};
  return std::find(std::begin(kTaking), std::end(kTaking), filter) != std::end(kTaking);
}

// What Python does when its result is iterated over, errors included.
bool IsLazy(std::string_view filter) {
  static constexpr std::string_view kLazy[] = {
      "batch", "items", "map", "reject", "rejectattr", "select", "selectattr", "slice", "unique"};
  return std::find(std::begin(kLazy), std::end(kLazy), filter) != std::end(kLazy);
}

absl::StatusOr<Value> Run(Context& context, const Native& native, const Value& receiver,
                          Call& call) {
  if (context.nesting >= kMaxNesting) {
    return absl::ResourceExhaustedError("filters call filters over " + std::to_string(kMaxNesting) +
                                        " deep");
  }
  ++context.nesting;
  context.heap.Work(1 + call.positional.size());
  auto result = native.run(context, receiver, call);
  --context.nesting;
  return result;
}

}  // namespace

std::optional<uint32_t> FindFilter(std::string_view name) {
  return Index(Filters(), name);
}
std::optional<uint32_t> FindTest(std::string_view name) {
  return Index(Tests(), name);
}

absl::StatusOr<Value> RunFilter(Context& context, uint32_t filter, const Value& receiver,
                                Call& call) {
  const Native& native = Filters()[filter];
  if (receiver.IsText() && receiver.text().safe && !TakesSafeText(native.name)) {
    return NotKnown("filter '" + std::string(native.name) +
                    "' of a text that 'safe' or 'escape' made is not known here");
  }
  auto result = Run(context, native, receiver, call);
  if (absl::IsInvalidArgument(result.status()) && IsLazy(native.name)) {
    Value failing = MakeIterator(context.heap, {});
    failing.As<Sequence>().failure = std::string(result.status().message());
    return failing;
  }
  return result;
}

absl::StatusOr<Value> RunTest(Context& context, uint32_t test, const Value& receiver, Call& call) {
  return Run(context, Tests()[test], receiver, call);
}

const Native* FindMethod(const Value& value, std::string_view name) {
  static const auto* const text =
      new std::vector<Native>(Joined({TextMethods(), TextPartMethods()}));
  static const auto* const dict = new std::vector<Native>(Joined({DictMethods()}));
  static const auto* const list = new std::vector<Native>(Joined({ListMethods()}));
  static const auto* const loop = new std::vector<Native>(Joined({LoopMethods()}));
  static const auto* const cycler = new std::vector<Native>(Joined({CyclerMethods()}));
  switch (value.kind()) {
    case Kind::kText:
      return Find(*text, name);
    case Kind::kDict:
      return Find(*dict, name);
    case Kind::kSequence:
      return value.sequence().HasItems() ? Find(*list, name) : nullptr;
    case Kind::kLoop:
      return Find(*loop, name);
    case Kind::kCycler:
      return Find(*cycler, name);
    default:
      return nullptr;
  }
}

absl::Status Fail(std::string sentence) {
  return absl::InvalidArgumentError(sentence);
}
absl::Status NotKnown(std::string sentence) {
  return absl::UnimplementedError(sentence);
}

absl::StatusOr<Arguments> Arguments::Bind(std::string_view what, Call& call,
                                          std::initializer_list<std::string_view> parameters,
                                          size_t required) {
  Arguments arguments;
  arguments.what_ = what;
  arguments.names_.assign(parameters.begin(), parameters.end());
  arguments.values_.resize(parameters.size());
  if (call.positional.size() > parameters.size()) {
    return Fail("'" + arguments.what_ + "' takes at most " + std::to_string(parameters.size()) +
                " arguments");
  }
  for (size_t at = 0; at < call.positional.size(); ++at) {
    arguments.values_[at] = call.positional[at];
  }
  for (const auto& [name, value] : call.named) {
    const auto parameter = std::find(parameters.begin(), parameters.end(), name);
    if (parameter == parameters.end()) {
      return Fail("'" + arguments.what_ + "' has no argument '" + std::string(name) + "'");
    }
    auto& slot = arguments.values_[static_cast<size_t>(parameter - parameters.begin())];
    if (slot) {
      return Fail("'" + arguments.what_ + "' has argument '" + std::string(name) + "' twice");
    }
    slot = value;
  }
  for (size_t at = 0; at < required; ++at) {
    if (!arguments.values_[at]) {
      return Fail("'" + arguments.what_ + "' needs argument '" + arguments.names_[at] + "'");
    }
  }
  return arguments;
}

absl::StatusOr<int64_t> Arguments::Integer(size_t at, int64_t other) const {
  if (!Has(at) || values_[at]->Is(Kind::kNone)) return other;
  if (!values_[at]->IsIntegral()) {
    return Fail("argument '" + names_[at] + "' of '" + what_ + "' must be an int, not " +
                std::string(values_[at]->TypeName()));
  }
  return values_[at]->integer();
}

absl::StatusOr<Value> Arguments::Text(size_t at) const {
  if (!values_[at]->IsText()) {
    return Fail("argument '" + names_[at] + "' of '" + what_ + "' must be a str, not " +
                std::string(values_[at]->TypeName()));
  }
  return *values_[at];
}

}  // namespace eta::jinja
