// lint: untrusted-input, fuzz-covered
// Filters that make numbers.
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/natives/access.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr int64_t kMaxPrecision = 300;

// Without whitespace around it; UNIMPLEMENTED for digits outside ASCII, which Python reads.
absl::StatusOr<std::string> Digits(std::string_view text) {
  for (size_t at = 0; at < text.size(); at += Utf8Length(text[at])) {
    const char32_t c = Utf8At(text, at);
    if (c >= 0x80 && IsDecimal(c)) return NotKnown("digits outside ASCII are not known here");
  }
  while (!text.empty() && IsSpace(Utf8At(text, 0))) text.remove_prefix(Utf8Length(text[0]));
  while (!text.empty()) {
    const size_t last = Utf8Before(text, text.size());
    if (!IsSpace(Utf8At(text, last))) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

// Underscores stand between digits only.
std::optional<std::string> WithoutUnderscores(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '_') {
      out += text[at];
      continue;
    }
    const auto alnum = [&](size_t i) {
      return i < text.size() && text[i] != '_' && IsAlnum(static_cast<unsigned char>(text[i]));
    };
    if (at == 0 || !alnum(at - 1) || !alnum(at + 1)) return std::nullopt;
  }
  return out;
}

// nullopt: it is none.
absl::StatusOr<std::optional<Value>> ParseInteger(const std::string& trimmed, int base) {
  const auto plain = WithoutUnderscores(trimmed);
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  bool negative = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  if (digits.size() > 2 && digits[0] == '0') {
    const char letter = static_cast<char>(digits[1] | 0x20);
    if ((base == 16 && letter == 'x') || (base == 8 && letter == 'o') ||
        (base == 2 && letter == 'b')) {
      digits.remove_prefix(2);
    }
  }
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error != std::errc()) return NotKnown("integers of over 64 bits are not known here");
  return Value::Integer(negative ? -number : number);
}

std::optional<double> ParseReal(const std::string& trimmed) {
  const auto plain = WithoutUnderscores(trimmed);
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view digits = *plain;
  if (digits[0] == '+') digits.remove_prefix(1);
  if (digits.empty() || digits[0] == '+') return std::nullopt;
  if (trimmed[0] == '+' && digits[0] == '-') return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (digits.find('(') != std::string_view::npos) return std::nullopt;  // nan(...)
  if (error == std::errc::result_out_of_range) {
    const bool tiny =
        digits.find("e-") != std::string_view::npos || digits.find("E-") != std::string_view::npos;
    number = tiny ? 0 : std::numeric_limits<double>::infinity();
    return digits[0] == '-' ? -number : number;
  }
  return number;
}

absl::StatusOr<std::optional<Value>> Truncated(double real) {
  if (!std::isfinite(real)) return std::nullopt;
  if (std::fabs(real) >= 9.2233720368547758e18) {
    return NotKnown("integers of over 64 bits are not known here");
  }
  return Value::Integer(static_cast<int64_t>(real));
}

Result Int(Context& /*context*/, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("int", call, {"default", "base"});
  if (!arguments.ok()) return arguments.status();
  const auto base = arguments->Integer(1, 10);
  if (!base.ok()) return base.status();
  if (*base != 2 && *base != 8 && *base != 10 && *base != 16) {
    return NotKnown("bases other than 2, 8, 10 and 16 are not known here");
  }
  const Value other = arguments->Or(0, Value::Integer(0));
  absl::StatusOr<std::optional<Value>> number = std::nullopt;
  if (receiver.IsText()) {
    const auto digits = Digits(receiver.text().bytes);
    if (!digits.ok()) return digits.status();
    number = ParseInteger(*digits, static_cast<int>(*base));
    if (number.ok() && !*number) {
      const auto real = ParseReal(*digits);
      if (real) number = Truncated(*real);
    }
  } else if (receiver.Is(Kind::kReal)) {
    number = Truncated(receiver.real());
  } else if (receiver.IsIntegral()) {
    return Value::Integer(receiver.integer());
  } else if (receiver.IsUndefined()) {
    return Fail(receiver.why());
  }
  if (!number.ok()) return number.status();
  return *number ? **number : other;
}

Result Float(Context& /*context*/, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("float", call, {"default"});
  if (!arguments.ok()) return arguments.status();
  if (receiver.IsUndefined()) return Fail(receiver.why());
  if (receiver.IsNumber()) return Value::Real(receiver.real());
  if (receiver.IsText()) {
    const auto digits = Digits(receiver.text().bytes);
    if (!digits.ok()) return digits.status();
    if (const auto real = ParseReal(*digits)) return Value::Real(*real);
  }
  return arguments->Or(0, Value::Real(0));
}

Result Abs(Context& /*context*/, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("abs", call, {});
  if (!arguments.ok()) return arguments.status();
  if (!receiver.IsNumber()) {
    return Fail("bad operand type for abs(): '" + std::string(receiver.TypeName()) + "'");
  }
  const bool negative =
      receiver.Is(Kind::kReal) ? std::signbit(receiver.real()) : receiver.integer() < 0;
  return Negate(receiver, negative);
}

// To so many decimals, halves to even, as Python rounds the exact value of a float.
Result RoundReal(double real, int64_t precision) {
  if (!std::isfinite(real)) return Value::Real(real);
  std::array<char, 800> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), real,
                                 std::chars_format::fixed, static_cast<int>(precision))
                       .ptr;
  double rounded = 0;
  std::from_chars(buffer.data(), end, rounded);
  return Value::Real(rounded);
}

Result Round(Context& /*context*/, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("round", call, {"precision", "method"});
  if (!arguments.ok()) return arguments.status();
  const auto precision = arguments->Integer(0, 0);
  if (!precision.ok()) return precision.status();
  if (*precision < 0 || *precision > kMaxPrecision) {
    return NotKnown("rounding to fewer than no or more than 300 decimals is not known here");
  }
  std::string method = "common";
  if (arguments->Has(1)) {
    const auto text = arguments->Text(1);
    if (!text.ok()) return text.status();
    method = text->text().bytes;
  }
  if (!receiver.IsNumber()) {
    return Fail("'round' needs a number, not " + std::string(receiver.TypeName()));
  }
  if (method == "common") {
    if (receiver.IsIntegral()) return Value::Integer(receiver.integer());
    return RoundReal(receiver.real(), *precision);
  }
  if (method != "ceil" && method != "floor") return Fail("method must be common, ceil or floor");
  const double power = std::pow(10.0, static_cast<double>(*precision));
  // cannot wrap: of float64
  const double scaled = receiver.real() * power;
  return Value::Real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
}

Result LengthFilter(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("length", call, {});
  if (!arguments.ok()) return arguments.status();
  const auto length = Length(context.heap, receiver);
  if (!length.ok()) return length.status();
  return Value::Integer(*length);
}

}  // namespace

std::vector<Native> NumberFilters() {
  return {{"abs", &Abs}, {"count", &LengthFilter},  {"float", &Float},
          {"int", &Int}, {"length", &LengthFilter}, {"round", &Round}};
}

}  // namespace eta::jinja
