// Tests: what stands after `is`.
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/operators.h"

namespace eta::jinja {
namespace {

template <bool (*is_so)(const Value&)>
Native Test(std::string_view name) {
  return {name,
          [](Context& /*context*/, const Value& receiver, Arguments& /*arguments*/) -> Result {
            return Value::Boolean(is_so(receiver));
          }};
}

template <Kind... kinds>
bool IsOneOf(const Value& value) {
  return (value.Is(kinds) || ...);
}
bool IsDefined(const Value& value) {
  return !value.IsUndefined();
}
bool IsTrue(const Value& value) {
  return value.Is(Kind::kBoolean) && value.integer() != 0;
}
bool IsFalse(const Value& value) {
  return value.Is(Kind::kBoolean) && value.integer() == 0;
}
bool IsSequence(const Value& value) {
  return value.IsText() || value.IsDict() || value.IsUndefined() ||
         (value.IsSequence() && value.sequence().HasItems());
}

template <TokenKind op>
Native Comparison(std::string_view name) {
  return {name,
          [](Context& context, const Value& receiver, Arguments& arguments) -> Result {
            ASSIGN_OR_RETURN(const auto holds, Compare(context.heap, op, receiver, arguments[0]));
            return Value::Boolean(holds);
          },
          {"other"},
          1};
}

}  // namespace

std::vector<Native> ValueTests() {
  constexpr auto kIterable =
      &IsOneOf<Kind::kText, Kind::kDict, Kind::kUndefined, Kind::kSequence, Kind::kLoop>;
  return {
      Test<&IsOneOf<Kind::kBoolean>>("boolean"),
      Test<&IsDefined>("defined"),
      Comparison<TokenKind::kEq>("=="),
      Comparison<TokenKind::kEq>("eq"),
      Comparison<TokenKind::kEq>("equalto"),
      Test<&IsFalse>("false"),
      Test<&IsOneOf<Kind::kReal>>("float"),
      Comparison<TokenKind::kIn>("in"),
      Test<&IsOneOf<Kind::kInteger>>("integer"),
      Test<kIterable>("iterable"),
      Test<&IsOneOf<Kind::kDict>>("mapping"),
      Comparison<TokenKind::kNe>("ne"),
      Test<&IsOneOf<Kind::kNone>>("none"),
      Test<&IsOneOf<Kind::kInteger, Kind::kBoolean, Kind::kReal>>("number"),
      Test<&IsSequence>("sequence"),
      Test<&IsOneOf<Kind::kText>>("string"),
      Test<&IsTrue>("true"),
      Test<&IsOneOf<Kind::kUndefined>>("undefined"),
  };
}

}  // namespace eta::jinja
