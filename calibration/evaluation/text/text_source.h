// The documents of a text corpus, in file order. A `.txt` is one document. A `.jsonl` has one
// object with a string field `text` per line. Either may be compressed as `.xz`. Only the current
// document is held in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/evaluation/text/line_reader.h"

namespace eta {

// The most token ids of a text that are held: 256 MiB.
inline constexpr size_t kMaxTextTokens = size_t{1} << 26;

// InvalidArgument (`text`) for more tokens than `limit`.
absl::Status CheckTextTokens(size_t tokens, size_t limit = kMaxTextTokens);

class TextSource {
 public:
  // NotFound for a file that cannot be read, InvalidArgument for another kind of name.
  static absl::StatusOr<std::unique_ptr<TextSource>> Open(const std::string& path,
                                                          const TextLimits& limits = {});
  virtual ~TextSource() = default;

  // Returns the next document; nullopt at the end. InvalidArgument, naming the line, for text that
  // does not match the file's extension or exceeds a limit.
  absl::StatusOr<std::optional<std::string>> Next();
  // An error over the last document, with its number, from 1 on.
  absl::Status InDocument(const absl::Status& status) const;

 private:
  virtual absl::StatusOr<std::optional<std::string>> Read() = 0;

  int64_t documents_ = 0;
};

}  // namespace eta
