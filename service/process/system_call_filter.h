// System calls that a running server has no use for and an intruder has, refused by the kernel.
#pragma once

#include "absl/status/status.h"

namespace eta {

struct SystemCallFilterOptions {
  // Memory may become executable after it was written, as compilers at run time need.
  bool allow_generated_code = false;
  // The helper process of formats forks, and neither it nor what it forks has a use for sockets;
  // its children have none for files either.
  bool may_fork = false;
  bool may_make_sockets = true;
  bool may_open_files = true;
};

// For this thread and those that it begins from here on; cannot be taken back. These fail with
// EPERM then: other programs and processes (execve, fork, ptrace, process_vm_writev, ...), sockets
// that are not of the Internet, of this host or of the routing table, raw sockets, mounts,
// namespaces, other users' rights, kernel modules and keys, io_uring, bpf, and anonymous memory
// that is written and executed, files in memory (memfd_create) included; not a file of a disk that
// was written and is mapped. A list of what is forbidden, not of what is allowed, so that a
// library's next version does not fail with a call that nobody thought of.
// FAILED_PRECONDITION where the kernel, or what surrounds this process, has no such filters.
absl::Status FilterSystemCalls(const SystemCallFilterOptions& options);

}  // namespace eta
