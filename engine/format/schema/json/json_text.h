// A JSON text as a list of its values. Not the library's tree: that loses the order of keys,
// refuses numbers beyond float64, which an answer may hold, and is destroyed by recursion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eta::schema {

enum class JsonKind : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

struct JsonValue {
  JsonKind kind = JsonKind::kNull;
  uint32_t end = 0;       // of what it holds, which stands right behind it
  uint32_t parent = 0;    // the root's is the root
  std::string_view key;   // in an object
  std::string_view text;  // of a string its characters, of a number how it is written
};

struct JsonRules {
  size_t max_bytes = 0;  // below 4 GiB
  size_t max_depth = 0;
  bool unique_keys = false;      // no object has a key twice
  bool whole_characters = true;  // no escape stands for half of a surrogate pair
};

// Immutable. Its views are its own, and stay when it is moved.
class JsonText {
 public:
  // INVALID_ARGUMENT: a sentence without its subject, "is not JSON at byte 7". Without recursion.
  static absl::StatusOr<JsonText> Parse(std::string_view text, const JsonRules& rules);

  const JsonValue& operator[](uint32_t at) const { return values_[at]; }
  uint32_t size() const { return static_cast<uint32_t>(values_.size()); }

  // The items or members of a value, in order: none of one that has none.
  class Children {
   public:
    class Iterator {
     public:
      Iterator(const JsonText* text, uint32_t at) : text_(text), at_(at) {}
      uint32_t operator*() const { return at_; }
      Iterator& operator++() {
        at_ = (*text_)[at_].end;
        return *this;
      }
      bool operator!=(const Iterator& other) const { return at_ != other.at_; }

     private:
      const JsonText* text_;
      uint32_t at_;
    };
    Children(const JsonText* text, uint32_t of) : text_(text), of_(of) {}
    Iterator begin() const { return {text_, of_ + 1}; }
    Iterator end() const { return {text_, (*text_)[of_].end}; }

   private:
    const JsonText* text_;
    uint32_t of_;
  };
  Children ChildrenOf(uint32_t at) const { return {this, at}; }

  // The members of an object by key; of those with one key the last, which is what readers take.
  std::vector<uint32_t> SortedMembers(uint32_t object) const;
  // What a JSON pointer (RFC 6901) points at.
  std::optional<uint32_t> At(std::string_view pointer) const;
  // Where a value stands, as such a pointer; cut short where it is long.
  std::string Pointer(uint32_t at) const;

 private:
  friend class JsonReader;

  std::vector<JsonValue> values_;  // a value, then what it holds
  std::vector<char> characters_;   // reserved whole: views into it stay
};

// As JSON has it: 1 and 1.0 are equal, the order of keys says nothing. Without recursion.
bool JsonEqual(const JsonText& a, uint32_t a_at, const JsonText& b, uint32_t b_at);

}  // namespace eta::schema
