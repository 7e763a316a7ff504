// Puts a text together and keeps which of its bytes the template wrote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/byte_range.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// Grows within the heap: what has no room is dropped, and the heap's status says so.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(&heap) {}
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder(TextBuilder&& other) noexcept;
  TextBuilder& operator=(TextBuilder&&) = delete;
  ~TextBuilder() { heap_->Release(held_); }

  // `own`: by the template.
  void Append(std::string_view bytes, bool own = false);
  void Append(const Text& text) { Append(text, 0, text.bytes.size()); }
  // Bytes [begin, end) of a text.
  void Append(const Text& text, size_t begin, size_t end);
  size_t size() const { return bytes_.size(); }

  Value Finish();  // the builder is empty afterwards
  // What has been put together, for what outlives the heap.
  std::string TakeBytes() { return std::move(bytes_); }
  std::vector<ByteRange> TakeControl() { return std::move(control_); }

 private:
  bool Grow(size_t bytes);
  void Mark(size_t begin, size_t end);

  Heap* heap_;
  std::string bytes_;
  std::vector<ByteRange> control_;
  size_t held_ = 0;
};

// Bytes [begin, end) as a text of their own.
Value SubText(Heap& heap, const Text& text, size_t begin, size_t end);
// Whether byte `at` is by the template.
bool IsOwn(const Text& text, size_t at);

// The text with `escape(character)` in place of each character for which that is not empty.
template <typename Escape>
void AppendEscaped(const Text& text, const Escape& escape, TextBuilder& out) {
  const std::string_view bytes = text.bytes;
  size_t plain = 0;  // where what stays as it is begins
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = at + Utf8Length(bytes[at]);
    if (const std::string escaped = escape(Utf8At(bytes, at)); !escaped.empty()) {
      out.Append(text, plain, at);
      out.Append(escaped, IsOwn(text, at));
      plain = end;
    }
    at = end;
  }
  out.Append(text, plain, bytes.size());
}

}  // namespace eta::jinja
