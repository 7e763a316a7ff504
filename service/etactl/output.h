// The files that etactl writes.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace eta::ctl {

// Makes `text` the file's content, whole or not at all: it is written beside the file, synced, and
// then put in its place. A link stays one: what it leads to is replaced. A file that is there keeps
// its mode, and its owner and group as far as the user may give them. INVALID_ARGUMENT, with a
// sentence for the user, for one that the user may not write, or that is no regular file.
absl::Status ReplaceFile(const std::string& file, std::string_view text);

}  // namespace eta::ctl
