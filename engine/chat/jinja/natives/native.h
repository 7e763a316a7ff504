// Functions that templates may call: filters, tests, functions of the environment, methods of
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

struct Context {
  Heap& heap;
  uint32_t nesting = 0;  // of filters that call filters
};

struct Call {
  std::vector<Value> positional;  // without the receiver
  std::vector<std::pair<std::string_view, Value>> named;
};

class Arguments;

using Result = absl::StatusOr<Value>;
// `receiver`: what a filter or test is applied to, what a method is called on.
using NativeFunction = Result (*)(Context& context, const Value& receiver, Arguments& arguments);

struct Native {
  std::string_view name;
  NativeFunction run;
  std::vector<std::string_view> parameters = {};  // of Python, in order
  size_t required = 0;                            // the first of them have to be given
  size_t known = SIZE_MAX;                        // those behind are refused by name
  bool takes_any = false;                         // the call as it is, instead of parameters
};

// The arguments of a call by the names of its parameters.
class Arguments {
 public:
  static absl::StatusOr<Arguments> Bind(const Native& native, Call call);

  // None counts as absent, but for Or.
  bool Has(size_t at) const { return values_[at] && !values_[at]->Is(Kind::kNone); }
  const Value& operator[](size_t at) const { return *values_[at]; }
  Value Or(size_t at, Value other) const { return values_[at].value_or(std::move(other)); }
  bool Truth(size_t at) const { return values_[at] && values_[at]->Truth(); }
  // An int, or `other` where there is none.
  absl::StatusOr<int64_t> Integer(size_t at, int64_t other) const;
  // A str that has to be there.
  absl::StatusOr<Value> Text(size_t at) const;
  // Of a function that takes any.
  Call& call() { return call_; }

 private:
  const Native* native_ = nullptr;
  std::vector<std::optional<Value>> values_;
  Call call_;
};

// By their position in the list of all; nullopt where there is none of that name.
std::optional<uint32_t> FindFilter(std::string_view name);
std::optional<uint32_t> FindTest(std::string_view name);
Result RunFilter(Context& context, uint32_t filter, const Value& receiver, Call call);
Result RunTest(Context& context, uint32_t test, const Value& receiver, Call call);
// nullptr: no such function or method.
const Native* FindGlobal(std::string_view name);
const Native* FindMethod(const Value& value, std::string_view name);
Result RunNative(Context& context, const Native& native, const Value& receiver, Call call);

// Lists that make these up.
std::vector<Native> TextFilters();
std::vector<Native> ContainerFilters();
std::vector<Native> OrderFilters();
std::vector<Native> SelectionFilters();
std::vector<Native> ValueTests();
std::vector<Native> TextMethods();
std::vector<Native> DictMethods();

// INVALID_ARGUMENT and UNIMPLEMENTED; the interpreter puts the line in front.
absl::Status Fail(std::string sentence);
absl::Status NotKnown(std::string sentence);

}  // namespace eta::jinja
