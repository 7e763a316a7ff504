// Numbers of JSON: whole ones of any size are exact, others are float64, as most readers take them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace eta::schema {

struct Number {
  // `text` is a number as JSON writes it, and is kept.
  explicit Number(std::string_view text);

  bool whole_text;          // written without a point and an exponent
  bool negative;            // of such; never of 0
  std::string_view digits;  // of such, without the sign
  double value;             // infinite beyond float64

  // Written in whatever way: 1.0 and 1e2, too.
  bool IsWhole() const;
  // Of a whole number; `of` is above 0.
  bool IsMultipleOf(uint32_t of) const;
  // A whole number that fits.
  std::optional<int64_t> Int64() const;
};

// Negative, 0 or positive.
int Compare(const Number& a, const Number& b);

}  // namespace eta::schema
