// Tests: what stands after `is`.
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/natives/text_parts.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/python_text.h"

namespace eta::jinja {
namespace {

using Result = absl::StatusOr<Value>;

bool IsDefined(const Value& value) {
  return !value.IsUndefined();
}
bool IsUndefined(const Value& value) {
  return value.IsUndefined();
}
bool IsNone(const Value& value) {
  return value.Is(Kind::kNone);
}
bool IsBoolean(const Value& value) {
  return value.Is(Kind::kBoolean);
}
bool IsTrue(const Value& value) {
  return IsBoolean(value) && value.integer() != 0;
}
bool IsFalse(const Value& value) {
  return IsBoolean(value) && value.integer() == 0;
}
bool IsInteger(const Value& value) {
  return value.Is(Kind::kInteger);
}
bool IsFloat(const Value& value) {
  return value.Is(Kind::kReal);
}
bool IsNumber(const Value& value) {
  return value.IsNumber();
}
bool IsString(const Value& value) {
  return value.IsText();
}
bool IsMapping(const Value& value) {
  return value.IsDict();
}
bool IsSequence(const Value& value) {
  return value.IsText() || value.IsDict() || value.IsUndefined() ||
         (value.IsSequence() && value.sequence().HasItems());
}
bool IsIterable(const Value& value) {
  return value.IsText() || value.IsDict() || value.IsUndefined() || value.IsSequence() ||
         value.Is(Kind::kLoop);
}
bool IsCallable(const Value& value) {
  return value.IsUndefined() || value.Is(Kind::kFunction) || value.Is(Kind::kMacro) ||
         value.Is(Kind::kJoiner) || value.Is(Kind::kLoop);
}
bool IsEscaped(const Value& value) {
  return value.IsText() && value.text().safe;
}

template <bool (*is_so)(const Value&)>
Result Simple(Context& /*context*/, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("a test", call, {});
  if (!arguments.ok()) return arguments.status();
  return Value::Boolean(is_so(receiver));
}

template <TokenKind op>
Result Comparison(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("a test that compares", call, {"other"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto holds = Compare(context.heap, op, receiver, (*arguments)[0]);
  if (!holds.ok()) return holds.status();
  return Value::Boolean(*holds);
}

Result Modulo(Context& context, const Value& receiver, const Value& divisor, int64_t rest) {
  const auto modulo = Binary(context.heap, TokenKind::kMod, receiver, divisor);
  if (!modulo.ok()) return modulo.status();
  return Value::Boolean(Equal(context.heap, *modulo, Value::Integer(rest)));
}
Result Odd(Context& context, const Value& receiver, Call& /*call*/) {
  return Modulo(context, receiver, Value::Integer(2), 1);
}
Result Even(Context& context, const Value& receiver, Call& /*call*/) {
  return Modulo(context, receiver, Value::Integer(2), 0);
}
Result DivisibleBy(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("divisibleby", call, {"num"}, 1);
  if (!arguments.ok()) return arguments.status();
  return Modulo(context, receiver, (*arguments)[0], 0);
}

template <bool lower>
Result Cased(Context& context, const Value& receiver, Call& /*call*/) {
  const auto text = ToText(context.heap, receiver);
  if (!text.ok()) return text.status();
  return Value::Boolean(HasCase(text->text().bytes, lower));
}

// Python's `is`. Which numbers and texts are one object is Python's affair.
Result SameAs(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("sameas", call, {"other"}, 1);
  if (!arguments.ok()) return arguments.status();
  const Value& other = (*arguments)[0];
  if (receiver.kind() != other.kind()) return Value::Boolean(false);
  if (IsNone(receiver) || IsBoolean(receiver)) {
    return Value::Boolean(Equal(context.heap, receiver, other));
  }
  if (receiver.IsNumber() || receiver.IsText() || receiver.IsUndefined()) {
    if (!Equal(context.heap, receiver, other)) return Value::Boolean(false);
    return NotKnown("test 'sameas' of a " + std::string(receiver.TypeName()) +
                    " is not known here");
  }
  return Value::Boolean(receiver.object() == other.object());
}

}  // namespace

std::vector<Native> ValueTests() {
  return {
      {"!=", &Comparison<TokenKind::kNe>},
      {"<", &Comparison<TokenKind::kLess>},
      {"<=", &Comparison<TokenKind::kLessEq>},
      {"==", &Comparison<TokenKind::kEq>},
      {">", &Comparison<TokenKind::kGreater>},
      {">=", &Comparison<TokenKind::kGreaterEq>},
      {"boolean", &Simple<&IsBoolean>},
      {"callable", &Simple<&IsCallable>},
      {"defined", &Simple<&IsDefined>},
      {"divisibleby", &DivisibleBy},
      {"eq", &Comparison<TokenKind::kEq>},
      {"equalto", &Comparison<TokenKind::kEq>},
      {"escaped", &Simple<&IsEscaped>},
      {"even", &Even},
      {"false", &Simple<&IsFalse>},
      {"float", &Simple<&IsFloat>},
      {"ge", &Comparison<TokenKind::kGreaterEq>},
      {"greaterthan", &Comparison<TokenKind::kGreater>},
      {"gt", &Comparison<TokenKind::kGreater>},
      {"in", &Comparison<TokenKind::kIn>},
      {"integer", &Simple<&IsInteger>},
      {"iterable", &Simple<&IsIterable>},
      {"le", &Comparison<TokenKind::kLessEq>},
      {"lessthan", &Comparison<TokenKind::kLess>},
      {"lower", &Cased<true>},
      {"lt", &Comparison<TokenKind::kLess>},
      {"mapping", &Simple<&IsMapping>},
      {"ne", &Comparison<TokenKind::kNe>},
      {"none", &Simple<&IsNone>},
      {"number", &Simple<&IsNumber>},
      {"odd", &Odd},
      {"sameas", &SameAs},
      {"sequence", &Simple<&IsSequence>},
      {"string", &Simple<&IsString>},
      {"true", &Simple<&IsTrue>},
      {"undefined", &Simple<&IsUndefined>},
      {"upper", &Cased<false>},
  };
}

}  // namespace eta::jinja
