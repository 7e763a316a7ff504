// lint: untrusted-input, fuzz-covered
#include "engine/chat/tools/json_cursor.h"

namespace eta {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsHexDigit(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

bool JsonCursor::Feed(char c) {
  if (in_string()) return FeedString(c);
  if (place_ == Place::kLiteral) {
    if (c != literal_.front()) return false;
    literal_.remove_prefix(1);
    if (literal_.empty()) place_ = Place::kAfter;
    return true;
  }
  if (place_ == Place::kNumber) {
    if (FeedNumber(c)) return true;
    if (!NumberMayEnd()) return false;
    place_ = Place::kAfter;  // of which the byte is
  }
  if (IsJsonSpace(c)) return true;
  switch (place_) {
    case Place::kRoot:
      return c == '{' && Open(c, Place::kFirstKey);
    case Place::kFirstKey:
      if (c == '}') return Close('{');
      [[fallthrough]];
    case Place::kKey:
      is_key_ = true;
      place_ = Place::kString;
      return c == '"';
    case Place::kColon:
      place_ = Place::kValue;
      return c == ':';
    case Place::kFirstItem:
      if (c == ']') return Close('[');
      [[fallthrough]];
    case Place::kValue:
      return BeginValue(c);
    case Place::kAfter:
      if (c == '}') return Close('{');
      if (c == ']') return Close('[');
      place_ = open_.back() == '{' ? Place::kKey : Place::kValue;
      return c == ',';
    default:
      return false;
  }
}

bool JsonCursor::FeedString(char c) {
  constexpr std::string_view kEscapes = "\"\\/bfnrt";
  switch (place_) {
    case Place::kEscape:
      place_ = c == 'u' ? Place::kHex : Place::kString;
      hex_left_ = 4;
      return c == 'u' || kEscapes.find(c) != std::string_view::npos;
    case Place::kHex:
      if (--hex_left_ == 0) place_ = Place::kString;
      return IsHexDigit(c);
    default:
      break;
  }
  if (c == '"') {
    place_ = is_key_ ? Place::kColon : Place::kAfter;
  } else if (c == '\\') {
    place_ = Place::kEscape;
  }
  return static_cast<unsigned char>(c) >= 0x20;
}

bool JsonCursor::FeedNumber(char c) {
  const auto go = [this](Digits digits) {
    digits_ = digits;
    return true;
  };
  switch (digits_) {
    case Digits::kSign:
      return IsDigit(c) && go(c == '0' ? Digits::kZero : Digits::kWhole);
    case Digits::kWhole:
      if (IsDigit(c)) return true;
      [[fallthrough]];
    case Digits::kZero:
      if (c == '.') return go(Digits::kPoint);
      return (c == 'e' || c == 'E') && go(Digits::kE);
    case Digits::kPoint:
      return IsDigit(c) && go(Digits::kFraction);
    case Digits::kFraction:
      if (IsDigit(c)) return true;
      return (c == 'e' || c == 'E') && go(Digits::kE);
    case Digits::kE:
      if (c == '+' || c == '-') return go(Digits::kESign);
      [[fallthrough]];
    case Digits::kESign:
      return IsDigit(c) && go(Digits::kExponent);
    case Digits::kExponent:
      return IsDigit(c);
  }
  return false;
}

bool JsonCursor::NumberMayEnd() const {
  return digits_ == Digits::kZero || digits_ == Digits::kWhole || digits_ == Digits::kFraction ||
         digits_ == Digits::kExponent;
}

bool JsonCursor::BeginValue(char c) {
  switch (c) {
    case '{':
      return Open(c, Place::kFirstKey);
    case '[':
      return Open(c, Place::kFirstItem);
    case '"':
      is_key_ = false;
      place_ = Place::kString;
      return true;
    case 't':
      literal_ = "rue";
      break;
    case 'f':
      literal_ = "alse";
      break;
    case 'n':
      literal_ = "ull";
      break;
    default:
      place_ = Place::kNumber;
      digits_ = Digits::kSign;
      return c == '-' || FeedNumber(c);
  }
  place_ = Place::kLiteral;
  return true;
}

bool JsonCursor::Open(char bracket, Place inside) {
  if (open_.size() == max_depth_) return false;
  open_ += bracket;
  place_ = inside;
  return true;
}

bool JsonCursor::Close(char bracket) {
  if (open_.back() != bracket) return false;
  open_.pop_back();
  place_ = open_.empty() ? Place::kEnd : Place::kAfter;
  return true;
}

}  // namespace eta
