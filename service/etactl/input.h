// The inputs of etactl: prompts, samples, files of token ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eta::ctl {

inline constexpr char kStandardInput[] = "-";

// Reads every byte of a file or of standard input. INVALID_ARGUMENT with a sentence for the user.
absl::StatusOr<std::string> ReadAll(const std::string& file);

// A text that is given as an argument or in a file, every byte of it; else, and for the argument
// "-", on standard input, without the line end that closes it. INVALID_ARGUMENT, with a sentence
// for the user: there is none and standard input is a terminal, or it cannot be read. `name`: of
// the argument.
absl::StatusOr<std::string> ReadText(const std::string& name, const std::string& argument,
                                     const std::string& file);

// Reads "1,52,7", or a file that holds such a list; "-" is standard input. INVALID_ARGUMENT, with a
// sentence for the user that begins with `name`.
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const std::string& name,
                                                  const std::string& list_or_file);

// A text to calibrate on, or its token ids.
struct Sample {
  std::string text;
  std::vector<int32_t> token_ids;
  std::string origin;  // "texts/a.txt", "texts/b.jsonl:3"
  // Its document, in the words of its line; "": it is one.
  std::string document = {};
  bool operator==(const Sample&) const = default;
};

// Reads samples: one per text file; of a *.jsonl file one per line, an object with `text` or
// `token_ids`, and with `document` if it is a part of one; of a folder its *.txt and *.jsonl files
// by name, without its subfolders. At most `max_bytes` in all, so that a folder given by mistake is
// not read whole. INVALID_ARGUMENT with a sentence that names the file.
absl::StatusOr<std::vector<Sample>> ReadSamples(const std::vector<std::string>& paths,
                                                int64_t max_bytes);

}  // namespace eta::ctl
