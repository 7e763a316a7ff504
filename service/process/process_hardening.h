// What eta-server gives up when it starts, before it reads a secret or hears from anybody.
#pragma once

#include "absl/status/statusor.h"

namespace eta {

enum class SystemCallFilter {
  kAuto,  // on where it is known to do no harm: see FiltersByDefault
  kOn,    // or the server does not start
  kOff
};

struct ProcessOptions {
  // A core file holds prompts, answers and keys, and so does what a debugger sees.
  bool allow_core_dumps = false;
  SystemCallFilter system_call_filter = SystemCallFilter::kAuto;
};

// Whether SystemCallFilter::kAuto means on. Not with `generates_code` (the CUDA driver compiles at
// run time and starts programs of its own), nor in a build with sanitizers, which fork and trace.
bool FiltersByDefault(bool generates_code);

// What needs no flags, so that it holds while they are read: files and sockets that this process
// makes are its user's own (umask 077), it gains no rights through programs that it starts, leaves
// no core file and is nobody's to trace but root's.
void HardenBeforeFlags();

// The rest: that of core files is made final, or taken back if the options allow them, and system
// calls are filtered (system_call_filter.h). Threads that run already are not: call it before any
// begins.
// True if the filter is in force. FAILED_PRECONDITION if it was asked for and cannot be.
absl::StatusOr<bool> HardenByFlags(const ProcessOptions& options, bool generates_code);

// The same in the helper process of formats (engine/format/helper), and in what it forks: they open
// no sockets, the latter no files either. Where the server may run without the filter, so may they.
void HardenFormatHelper(const ProcessOptions& options);
void HardenCompilation(const ProcessOptions& options);

}  // namespace eta
