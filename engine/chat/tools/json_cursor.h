// One JSON object, byte by byte: whether what has come may still become one, and where in it the
// next byte stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace eta {

// Strict JSON (RFC 8259). Keys that are there twice, and surrogates, are not looked at. Memory: its
// depth.
class JsonCursor {
 public:
  enum class Place : uint8_t {
    kRoot,      // before the object
    kFirstKey,  // of an object that has just begun: a key or its end
    kKey,
    kColon,
    kFirstItem,  // of an array that has just begun: a value or its end
    kValue,
    kAfter,  // a value: a comma, or the end of what it stands in
    kString,
    kEscape,
    kHex,
    kNumber,
    kLiteral,
    kEnd,  // the object is whole
  };

  explicit JsonCursor(size_t max_depth) : max_depth_(max_depth) {}

  // Takes the next byte. False: no object begins so; further bytes make no sense.
  bool Feed(char c);

  Place place() const { return place_; }
  size_t depth() const { return open_.size(); }  // objects and arrays that are open
  bool done() const { return place_ == Place::kEnd; }
  // In a string, its quotes apart.
  bool in_string() const {
    return place_ == Place::kString || place_ == Place::kEscape || place_ == Place::kHex;
  }

 private:
  enum class Digits : uint8_t { kSign, kZero, kWhole, kPoint, kFraction, kE, kESign, kExponent };

  bool FeedString(char c);
  bool FeedNumber(char c);  // false: it is no part of the number
  bool NumberMayEnd() const;
  bool BeginValue(char c);
  bool Open(char bracket, Place inside);
  bool Close(char bracket);

  const size_t max_depth_;
  Place place_ = Place::kRoot;
  Digits digits_ = Digits::kSign;
  bool is_key_ = false;  // the string is one
  int hex_left_ = 0;
  std::string_view literal_;  // what is left of it
  std::string open_;          // the brackets that are
};

inline bool IsJsonSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

}  // namespace eta
