#include "service/process/process_hardening.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "service/process/system_call_filter.h"

namespace eta {
namespace {

#ifdef ETA_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

void FilterUnlessOff(const ProcessOptions& options, const SystemCallFilterOptions& filter) {
  if (options.system_call_filter == SystemCallFilter::kOff) return;
  // These generate no code, whatever the server does.
  const bool wanted = options.system_call_filter == SystemCallFilter::kOn;
  if (!wanted && !FiltersByDefault(/*generates_code=*/false)) return;
  const absl::Status filtered = FilterSystemCalls(filter);
  if (wanted && !filtered.ok()) _exit(1);  // the server says of itself that it cannot be filtered
}

}  // namespace

bool FiltersByDefault(bool generates_code) {
  return !generates_code && !kSanitized;
}

void HardenBeforeFlags() {
  umask(077);
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

absl::StatusOr<bool> HardenByFlags(const ProcessOptions& options, bool generates_code) {
  if (options.allow_core_dumps) {
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  } else {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};  // cannot be raised again
    setrlimit(RLIMIT_CORE, &none);
  }
  const bool wanted = options.system_call_filter == SystemCallFilter::kOn;
  const bool tried = wanted || (options.system_call_filter == SystemCallFilter::kAuto &&
                                FiltersByDefault(generates_code));
  if (!tried) return false;
  const absl::Status filtered = FilterSystemCalls({.allow_generated_code = generates_code});
  if (!filtered.ok() && wanted) return filtered;
  return filtered.ok();
}

void HardenFormatHelper(const ProcessOptions& options) {
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &none);
  FilterUnlessOff(options, {.may_fork = true, .may_make_sockets = false});
}

void HardenCompilation(const ProcessOptions& options) {
  FilterUnlessOff(options, {.may_make_sockets = false, .may_open_files = false});
}

}  // namespace eta
