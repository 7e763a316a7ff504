// Numbers and texts as bytes, for messages to the helper process of formats: it is forked from the
// server and so reads them as they are written.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "engine/format/vocabulary.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

class ByteWriter {
 public:
  void Number(uint32_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void Text(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  std::string Release() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Past the end it reads zeros and empty texts, and is not ok() any more.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}
  uint32_t Number() {
    uint32_t value = 0;
    if (!Has(sizeof value)) return 0;
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string Text() {
    const uint32_t size = Number();
    if (!Has(size)) return {};
    std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && left_.empty(); }

 private:
  bool Has(size_t count) {
    ok_ = ok_ && left_.size() >= count;
    return ok_;
  }

  std::string_view left_;
  bool ok_ = true;
};

std::string BytesOf(const FormatVocabulary& vocabulary);
std::string BytesOf(const AnswerFormat& format);
// Nothing for bytes that are none.
std::optional<FormatVocabulary> ReadVocabulary(std::string_view bytes);
std::optional<AnswerFormat> ReadFormat(std::string_view bytes);

}  // namespace eta
