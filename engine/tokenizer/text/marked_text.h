// A text on its way through normalizers, with what must not get lost on the way.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace eta {

// Text and, where somebody asks for it, a mark for each of its bytes.
struct MarkedText {
  std::string text;
  std::string marks;         // 1 or 0 for each byte of text; empty: nobody asks
  bool begins_text = false;  // its first byte comes from the first byte of the whole text
};

// Writes a text anew, from left to right. What comes out of several bytes is marked if all of them
// were.
class Rewrite {
 public:
  explicit Rewrite(const MarkedText& from) : from_(from) { to_.text.reserve(from.text.size()); }

  // The next `size` bytes become `text`; 0: text that comes from nowhere, marked as what follows.
  void Replace(size_t size, std::string_view text) {
    const bool first = to_.text.empty() && !text.empty();
    if (first) to_.begins_text = from_.begins_text && at_ == 0;
    if (!from_.marks.empty()) {
      const auto begin = from_.marks.begin() + static_cast<std::ptrdiff_t>(at_);
      const auto seen = static_cast<std::ptrdiff_t>(
          std::min(std::max<size_t>(size, 1), from_.marks.size() - at_));
      const bool marked = std::all_of(begin, begin + seen, [](char mark) { return mark != 0; });
      to_.marks.append(text.size(), marked ? '\1' : '\0');
    }
    to_.text += text;
    at_ += size;
  }
  void Keep(size_t size) {
    const std::string_view kept = std::string_view(from_.text).substr(at_, size);
    if (to_.text.empty() && size > 0) to_.begins_text = from_.begins_text && at_ == 0;
    if (!from_.marks.empty()) to_.marks.append(from_.marks, at_, size);
    to_.text += kept;
    at_ += size;
  }
  size_t at() const { return at_; }
  MarkedText Finish() { return std::move(to_); }

 private:
  const MarkedText& from_;
  MarkedText to_;
  size_t at_ = 0;  // in from_
};

}  // namespace eta
