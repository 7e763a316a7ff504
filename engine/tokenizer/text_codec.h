// What a tokenizer's file format has to answer: how a text becomes ids, and what each id reads as.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/byte_range.h"
#include "engine/tokenizer/string_table.h"

namespace eta {

inline constexpr size_t kMaxTextBytes = size_t{16} << 20;

// By id. Ids that the file does not have read as nothing.
struct TokenTexts {
  StringTable spelled;           // as the vocabulary spells the token: "<|im_end|>"
  StringTable bytes;             // what the token adds to a text: nothing for special tokens
  StringTable first;             // the same where it is the first that adds anything
  std::vector<int32_t> special;  // ids of special tokens, ascending
};

// Which tokens are control tokens beside those that a file calls so. A chat's message must not make
// one, whatever a file says of it.
struct ControlSource {
  std::vector<std::string> written;  // by the chat template, or what ends a text: tokens in these
  std::vector<int32_t> ids;          // what begins and ends a text, as far as it is known
};

// Metadata of the error on what no token stands for, which it names: "byte 0x04".
inline constexpr char kNoTokenFor[] = "no_token_for";

// White space is no structure, though a template writes it. Neither is a single character of the
// vocabulary, which may have nothing else for it.
inline bool IsBlankText(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Immutable; thread-safe.
class TextCodec {
 public:
  virtual ~TextCodec() = default;

  virtual const TokenTexts& tokens() const = 0;

  // Bytes of text that one id stands for at most; 0: any number.
  virtual size_t max_token_bytes() const = 0;

  // Ids that come before and after every text whose caller asks for them.
  virtual const std::vector<int32_t>& beginning() const = 0;
  virtual const std::vector<int32_t>& ending() const = 0;

  // Ids of `text` alone. Control tokens that it spells become their ids where they lie in `control`
  // whole; touching ranges are one. So do other tokens, white space apart, of which one lies in
  // `control`: what is structure in one place is no text in another. INVALID_ARGUMENT for a text on
  // which a pattern of the file exceeds its limits, and for what no token stands for, with its
  // offset: nothing gets lost. REQUIRES: well-formed UTF-8 of at most kMaxTextBytes; sorted and
  // disjoint ranges in it.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      std::span<const ByteRange> control) const = 0;
};

}  // namespace eta
