#include "engine/chat/jinja/values/text_builder.h"

#include <algorithm>
#include <utility>

namespace eta::jinja {

TextBuilder::TextBuilder(TextBuilder&& other) noexcept
    : heap_(other.heap_),
      bytes_(std::move(other.bytes_)),
      control_(std::move(other.control_)),
      held_(std::exchange(other.held_, 0)) {}

bool TextBuilder::Grow(size_t bytes) {
  heap_->Work(bytes / 64);
  if (!heap_->Hold(bytes)) return false;
  held_ += bytes;
  return true;
}

void TextBuilder::Mark(size_t begin, size_t end) {
  if (!control_.empty() && control_.back().end == begin) {
    control_.back().end = end;
  } else if (Grow(sizeof(ByteRange))) {
    control_.push_back({begin, end});
  }
}

void TextBuilder::Append(std::string_view bytes, bool own) {
  if (bytes.empty() || !Grow(bytes.size())) return;
  bytes_ += bytes;
  if (own) Mark(bytes_.size() - bytes.size(), bytes_.size());
}

void TextBuilder::Append(const Text& text, size_t begin, size_t end) {
  if (begin >= end || !Grow(end - begin)) return;
  const size_t base = bytes_.size();
  bytes_.append(text.bytes, begin, end - begin);
  auto range = std::upper_bound(text.control.begin(), text.control.end(), begin,
                                [](size_t at, const ByteRange& other) { return at < other.end; });
  for (; range != text.control.end() && range->begin < end; ++range) {
    Mark(base + std::max(range->begin, begin) - begin, base + std::min(range->end, end) - begin);
  }
}

Value TextBuilder::Finish() {
  heap_->Release(std::exchange(held_, 0));
  return MakeText(*heap_, std::exchange(bytes_, {}), std::exchange(control_, {}));
}

Value SubText(Heap& heap, const Text& text, size_t begin, size_t end) {
  TextBuilder builder(heap);
  builder.Append(text, begin, end);
  return builder.Finish();
}

bool IsOwn(const Text& text, size_t at) {
  const auto range =
      std::upper_bound(text.control.begin(), text.control.end(), at,
                       [](size_t byte, const ByteRange& other) { return byte < other.end; });
  return range != text.control.end() && range->begin <= at;
}

}  // namespace eta::jinja
