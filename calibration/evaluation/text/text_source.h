// The documents of a text corpus, in file order: `.txt` is one document, `.jsonl` holds one object
// with a string field `text` per line; either may be compressed as `.xz`. Nothing is held but the
// document at hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eta {

struct TextLimits {
  size_t max_document_bytes = size_t{16} << 20;      // one line of .jsonl, or a whole .txt
  uint64_t max_total_bytes = uint64_t{4} << 30;      // of the file, uncompressed
  uint64_t max_decoder_bytes = uint64_t{128} << 20;  // memory that an .xz may ask for
};

// Of what is held of a text as token ids: 256 MiB.
inline constexpr size_t kMaxTextTokens = size_t{1} << 26;

// InvalidArgument (`text`) for more tokens than `limit`.
absl::Status CheckTextTokens(size_t tokens, size_t limit = kMaxTextTokens);

class TextSource {
 public:
  // NotFound for a file that cannot be read, InvalidArgument for another kind of name.
  static absl::StatusOr<std::unique_ptr<TextSource>> Open(const std::string& path,
                                                          const TextLimits& limits = {});
  virtual ~TextSource() = default;

  // The next document; nullopt at the end. InvalidArgument, naming the line, for text that is not
  // what the file's name says, and for text past a limit.
  virtual absl::StatusOr<std::optional<std::string>> Next() = 0;
};

}  // namespace eta
