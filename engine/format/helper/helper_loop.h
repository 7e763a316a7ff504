// The life of the helper process of formats (format_helper.h), and of its children.
#pragma once

#include <sys/types.h>

#include "engine/format/helper/format_helper.h"

namespace eta {

// Runs in the helper until `server` ends, or closes the other end of `socket`.
[[noreturn]] void RunHelper(const FormatHelperOptions& options, pid_t server, Descriptor socket);

// Runs in a child: compiles the format that comes over `socket`, and sends the result there.
[[noreturn]] void RunCompilation(const FormatHelperOptions& options, const GrammarLibrary& library,
                                 std::chrono::milliseconds limit, const Descriptor& socket);

}  // namespace eta
