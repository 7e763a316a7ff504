// lint: untrusted-input, fuzz-covered
#include "engine/base/utf8.h"

#include <cstdint>

namespace eta {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Scan {
  size_t length;  // of the well-formed character at the start; 0: there is none
  bool partial;   // length 0, and more bytes could still make one
};

Scan ScanCharacter(std::string_view bytes) {
  const auto byte = [bytes](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, false};
  if (lead < 0xC2 || lead > 0xF4) return {0, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte is narrower after these leads: no overlong forms, surrogates, past U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {0, true};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) return {0, false};
  }
  return {length, false};
}

}  // namespace

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const size_t length = ScanCharacter(text.substr(i)).length;
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

void Utf8Assembler::Append(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined += bytes;
    pending_.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    const Scan scan = ScanCharacter(bytes);
    if (scan.partial) {
      pending_ = std::string(bytes);
      return;
    }
    if (scan.length > 0) {
      out += bytes.substr(0, scan.length);
    } else {
      out += kReplacement;
    }
    bytes.remove_prefix(scan.length > 0 ? scan.length : 1);
  }
}

void Utf8Assembler::Finish(std::string& out) {
  for (size_t i = 0; i < pending_.size(); ++i) out += kReplacement;
  pending_.clear();
}

}  // namespace eta
