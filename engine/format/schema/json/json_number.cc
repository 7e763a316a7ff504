// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/json/json_number.h"

#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace eta::schema {
namespace {

constexpr size_t kExactDigits = 15;  // whole numbers of so many digits are exact in float64

int Sign(double value) {
  return value < 0 ? -1 : value > 0 ? 1 : 0;
}

int CompareDigits(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

int CompareWhole(const Number& a, const Number& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int order = CompareDigits(a.digits, b.digits);
  return a.negative ? -order : order;
}

// A whole number against one that is float64.
int CompareMixed(const Number& whole, double other) {
  if (!std::isfinite(other)) return -Sign(other);
  if (whole.digits.size() <= kExactDigits) return Sign(whole.value - other);
  const double cut = std::trunc(other);
  const std::string text = absl::StrFormat("%.0f", cut);
  const int order = CompareWhole(whole, Number(text));
  return order != 0 ? order : Sign(cut - other);
}

}  // namespace

Number::Number(std::string_view text)
    : whole_text(text.find_first_of(".eE") == std::string_view::npos), value(0) {
  negative = whole_text && text.starts_with('-');
  digits = text.substr(negative ? 1 : 0);
  if (digits == "0") negative = false;
  // What is beyond float64 becomes infinite, what is below it 0.
  (void)absl::SimpleAtod(absl::string_view(text.data(), text.size()), &value);
}

bool Number::IsWhole() const {
  return whole_text || (std::isfinite(value) && std::trunc(value) == value);
}

bool Number::IsMultipleOf(uint32_t of) const {
  if (!whole_text) return IsWhole() && std::fmod(value, of) == 0.0;
  uint64_t rest = 0;
  for (const char digit : digits) {
    // cannot wrap: the rest is below 2^32
    rest = (rest * 10 + static_cast<uint64_t>(digit - '0')) % of;
  }
  return rest == 0;
}

std::optional<int64_t> Number::Int64() const {
  if (whole_text) {
    int64_t number = 0;
    const std::string text = (negative ? "-" : "") + std::string(digits);
    if (!absl::SimpleAtoi(text, &number)) return std::nullopt;
    return number;
  }
  constexpr double kLimit = 9007199254740992.0;  // up to here float64 has every whole number
  if (!IsWhole() || value < -kLimit || value > kLimit) return std::nullopt;
  return static_cast<int64_t>(value);
}

int Compare(const Number& a, const Number& b) {
  if (a.whole_text && b.whole_text) return CompareWhole(a, b);
  if (a.whole_text) return CompareMixed(a, b.value);
  if (b.whole_text) return -CompareMixed(b, a.value);
  return a.value < b.value ? -1 : a.value > b.value ? 1 : 0;
}

}  // namespace eta::schema
