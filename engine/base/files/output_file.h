// A file that is written whole or not at all: under another name first, then synced and put in
// place. What was there before stays until then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/files/descriptor.h"

namespace eta {

// Move-only. Not thread-safe.
class OutputFile {
 public:
  // Begins `path`.partial; one that an ended process left is replaced. Errors of this class carry
  // the last part of `path` and what the system says, such as that no space is left.
  static absl::StatusOr<OutputFile> Create(const std::string& path);

  OutputFile(OutputFile&&) = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();  // without Commit nothing is left of it

  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Write(std::string_view text);
  // Over what was written before.
  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // Call once, last.
  absl::Status Commit();

 private:
  OutputFile(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  absl::Status Failed(const char* what) const;

  Descriptor fd_;
  std::string path_;
};

// Writes a text as such a file.
absl::Status WriteWholeFile(const std::string& path, std::string_view text);

// Makes the names in a folder last. Errors as above.
absl::Status SyncFolder(const std::string& folder);

}  // namespace eta
