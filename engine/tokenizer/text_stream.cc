// lint: fuzz-covered
#include "engine/tokenizer/text_stream.h"

#include <algorithm>
#include <utility>

namespace eta {

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       std::vector<std::string> stop_strings, bool include_stop, bool show_special,
                       std::vector<int32_t> marks)
    : tokenizer_(tokenizer),
      stop_strings_(std::move(stop_strings)),
      include_stop_(include_stop),
      show_special_(show_special),
      marks_(std::move(marks)) {
  std::erase(stop_strings_, "");
  for (const int32_t id : prompt) {
    first_ = first_ && tokenizer_.PieceBytes(id).empty();
    if (!first_) break;
  }
  // An unfinished character has at most three bytes, so the last three ids with bytes decide.
  size_t begin = prompt.size();
  for (int with_bytes = 0; begin > 0 && with_bytes < 3;) {
    if (!Bytes(prompt[--begin]).empty()) ++with_bytes;
  }
  std::string discarded;
  for (const int32_t id : prompt.subspan(begin)) {
    assembler_.Append(Bytes(id), discarded);
  }
}

TextStream::Emission TextStream::Push(int32_t id) {
  if (matched_stop_) return {.text = "", .matched_stop = matched_stop_};
  if (std::binary_search(marks_.begin(), marks_.end(), id)) {
    std::string text = Flush();
    return {.text = std::move(text), .matched_stop = matched_stop_, .marked = !matched_stop_};
  }
  const bool has_bytes = !tokenizer_.PieceBytes(id).empty();
  const std::string_view bytes = first_ && has_bytes ? tokenizer_.FirstPieceBytes(id) : Bytes(id);
  first_ = first_ && !has_bytes;
  const size_t before = held_.size();
  assembler_.Append(bytes, held_);
  std::string text = Release(held_.size() - before);
  return {.text = std::move(text), .matched_stop = matched_stop_};
}

std::string TextStream::Flush() {
  if (matched_stop_) return "";
  const size_t before = held_.size();
  assembler_.Finish(held_);
  std::string text = Release(held_.size() - before);
  if (matched_stop_) return text;
  text += std::exchange(held_, "");
  return text;
}

std::string TextStream::Release(size_t added) {
  size_t cut = held_.size() - HeldBack();
  size_t stop_end = std::string::npos;
  for (const std::string& stop : stop_strings_) {
    // A match ends in the new bytes: what was held before held no whole stop string.
    const size_t old = held_.size() - added;
    const size_t from = old - std::min(old, stop.size() - 1);
    const size_t begin = held_.find(stop, from);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end > stop_end || (end == stop_end && stop.size() <= matched_stop_->size())) continue;
    stop_end = end;
    matched_stop_ = stop;
  }
  if (matched_stop_) cut = include_stop_ ? stop_end : stop_end - matched_stop_->size();

  std::string text = held_.substr(0, cut);
  held_.erase(0, cut);
  return text;
}

size_t TextStream::HeldBack() const {
  size_t longest = 0;
  for (const std::string& stop : stop_strings_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > longest; --size) {
      if (held_.compare(held_.size() - size, size, stop, 0, size) == 0) longest = size;
    }
  }
  return longest;
}

}  // namespace eta
