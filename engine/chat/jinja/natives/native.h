// Functions that templates may call: filters, tests, functions of the environment, methods of
// values.
#pragma once

#include <cstdint>
#include <initializer_list>
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

// `receiver`: what a filter or test is applied to, what a method is called on.
using NativeFunction = absl::StatusOr<Value> (*)(Context& context, const Value& receiver,
                                                 Call& call);
struct Native {
  std::string_view name;
  NativeFunction run;
};

// By their position in the list of all; nullopt where there is none of that name.
std::optional<uint32_t> FindFilter(std::string_view name);
std::optional<uint32_t> FindTest(std::string_view name);
absl::StatusOr<Value> RunFilter(Context& context, uint32_t filter, const Value& receiver,
                                Call& call);
absl::StatusOr<Value> RunTest(Context& context, uint32_t test, const Value& receiver, Call& call);
const Native* FindGlobal(std::string_view name);
// nullptr: no such method.
const Native* FindMethod(const Value& value, std::string_view name);

// Lists that make these up.
std::vector<Native> TextFilters();
std::vector<Native> SequenceFilters();
std::vector<Native> SelectionFilters();
std::vector<Native> NumberFilters();
std::vector<Native> ValueTests();
std::vector<Native> TextMethods();
std::vector<Native> TextPartMethods();
std::vector<Native> DictMethods();
std::vector<Native> ListMethods();
std::vector<Native> LoopMethods();
std::vector<Native> CyclerMethods();

// INVALID_ARGUMENT and UNIMPLEMENTED; the interpreter puts the line in front.
absl::Status Fail(std::string sentence);
absl::Status NotKnown(std::string sentence);

// The arguments of a call by the names of its parameters.
class Arguments {
 public:
  // `what` is named by errors; the first `required` parameters must be there.
  static absl::StatusOr<Arguments> Bind(std::string_view what, Call& call,
                                        std::initializer_list<std::string_view> parameters,
                                        size_t required = 0);

  bool Has(size_t at) const { return values_[at].has_value(); }
  const Value& operator[](size_t at) const { return *values_[at]; }
  Value Or(size_t at, Value other) const { return Has(at) ? *values_[at] : std::move(other); }
  bool Truth(size_t at) const { return Has(at) && values_[at]->Truth(); }
  // An int, or `other` where the argument is absent or None.
  absl::StatusOr<int64_t> Integer(size_t at, int64_t other) const;
  // A str that has to be there.
  absl::StatusOr<Value> Text(size_t at) const;

 private:
  std::string what_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace eta::jinja
