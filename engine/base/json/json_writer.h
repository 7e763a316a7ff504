// JSON as text, written as it comes, indented by one blank a level as the library's dump(1) is. Not
// by its tree of values, whose destructor allocates: where that fails the process ends.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "nlohmann/json.hpp"

namespace eta {

class JsonWriter {
 public:
  // In an array or at the very beginning; in an object with the key before it.
  void BeginObject() { Begin('{', '}'); }
  void BeginArray() { Begin('[', ']'); }
  void End() {
    const char close = open_.back();
    open_.pop_back();
    if (!first_) NewLine();
    text_ += close;
    first_ = false;
  }
  JsonWriter& Key(std::string_view name) {
    Separate();
    text_ += nlohmann::json(name).dump() + ": ";
    has_key_ = true;
    return *this;
  }
  // A text, a number, true, false or nullptr.
  template <typename T>
  void Value(const T& value) {
    Separate();
    text_ += nlohmann::json(value).dump();
  }
  // Once everything has been ended.
  std::string Release() { return std::move(text_); }

 private:
  void Begin(char open, char close) {
    Separate();
    open_ += close;
    text_ += open;
    first_ = true;
  }
  void Separate() {
    if (!std::exchange(has_key_, false) && !open_.empty()) {
      if (!first_) text_ += ',';
      NewLine();
    }
    first_ = false;
  }
  void NewLine() { text_.append(1, '\n').append(open_.size(), ' '); }

  std::string text_;
  std::string open_;      // what ends those that have begun
  bool first_ = true;     // nothing stands in the innermost of them
  bool has_key_ = false;  // a key waits for its value
};

}  // namespace eta
