#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "engine/format/helper/byte_text.h"
#include "engine/format/helper/helper_loop.h"
#include "engine/format/helper/packet_letters.h"

namespace eta {
namespace {

#ifdef ETA_SANITIZED
constexpr bool kBoundsMemory = false;
#else
constexpr bool kBoundsMemory = true;
#endif
constexpr rlim_t kStackBytes = rlim_t{64}
                               << 20;  // the library calls itself, as deep as a format is

// The address space that this process has taken already.
rlim_t BytesNow() {
  rlim_t pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  unsigned long read = 0;
  if (std::fscanf(file, "%lu", &read) == 1) pages = read;
  std::fclose(file);
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// As far down as asked for; never up.
void Limit(__rlimit_resource_t resource, rlim_t value) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max = std::min(value, limit.rlim_max);
  setrlimit(resource, &limit);
}

void Bound(const FormatHelperOptions& options, std::chrono::milliseconds limit) {
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_STACK, kStackBytes);
  // The helper kills by the clock of the wall; this is for where it cannot.
  Limit(RLIMIT_CPU, static_cast<rlim_t>(limit.count() / 1000 + 2));
  if (!kBoundsMemory) return;
  const rlim_t now = BytesNow();
  if (now > 0) Limit(RLIMIT_AS, now + static_cast<rlim_t>(options.memory_bytes));
}

absl::Status Compile(const GrammarLibrary& library, int socket) {
  std::string bytes;
  while (true) {
    auto packet = ReceivePacket(socket, kNoDeadline);
    if (!packet.ok()) return packet.status();
    if (packet->letter == kFormatEnd) break;
    bytes += packet->bytes;
  }
  const auto format = ReadFormat(bytes);
  if (!format) return SendPacket(socket, kInvalid, "is none", kNoDeadline);
  const auto compiled = library.Compile(*format);
  if (compiled.ok()) return SendText(socket, kResultPart, kResultEnd, *compiled, kNoDeadline);
  if (absl::IsResourceExhausted(compiled.status())) {
    return SendPacket(socket, kNoMemory, {}, kNoDeadline);
  }
  const std::string reason(compiled.status().message());
  return SendPacket(socket, kInvalid, reason.substr(0, kMaxPacketBytes), kNoDeadline);
}

}  // namespace

void RunCompilation(const FormatHelperOptions& options, const GrammarLibrary& library,
                    std::chrono::milliseconds limit, const Descriptor& socket) {
  // Neither the helper's socket nor those of its other children.
  const auto kept = static_cast<unsigned>(socket.get());
  close_range(STDERR_FILENO + 1, kept - 1, 0);
  close_range(kept + 1, ~0U, 0);
  Bound(options, limit);
  if (options.harden_child) options.harden_child();
  try {
    if (!Compile(library, socket.get()).ok()) _exit(0);  // nobody waits for it any more
  } catch (const std::bad_alloc&) {
    _exit(kExitNoMemory);
  } catch (const std::exception&) {  // a defect: the library's are caught where it is called
    std::abort();
  }
  _exit(0);
}

}  // namespace eta
