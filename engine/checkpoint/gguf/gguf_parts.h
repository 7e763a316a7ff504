// A model in one GGUF file or in several, side by side, as llama.cpp's gguf-split and its converter
// write them: NAME-00001-of-0000N.gguf to NAME-0000N-of-0000N.gguf. Each says under "split." which
// of how many it is; the first has the metadata, all have tensors, of which the first may have
// none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/files/input_file.h"
#include "engine/checkpoint/gguf/gguf_header.h"

namespace eta {

inline constexpr int64_t kGgufMaxParts = 1000;

struct GgufParts {
  std::vector<InputFile> files;              // in order, at least one
  GgufHeader header;                         // the metadata of the first, the tensors of all
  std::unique_ptr<const std::string> bytes;  // what the header's views look into
};

// `path`: of the file, or of the first part. Errors of InputFile::Open and ParseGgufHeader;
// INVALID_ARGUMENT for a file that is another part, or whose name is not that of a first part, for
// parts that do not fit together, for tensors that are there twice, too few or too many. Each names
// its file.
absl::StatusOr<GgufParts> OpenGgufParts(const std::string& path, const InputFileOptions& options);

// What a GGUF file's model is called: the file's name without ".gguf", and without what makes it
// the first part.
std::string GgufModelName(std::string_view file_name);

}  // namespace eta
