#include "engine/format/helper/format_helper.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/format/helper/byte_text.h"
#include "engine/format/helper/helper_loop.h"
#include "engine/format/helper/packet_letters.h"

namespace eta {
namespace {

constexpr size_t kMaxReasonBytes = 512;

absl::Status HelperDied() {
  return MakeError(absl::StatusCode::kUnavailable,
                   "format: the process that compiles formats has ended; this server takes none "
                   "until it is restarted",
                   {.reason = "FORMATS_UNAVAILABLE"});
}

absl::Status TooSlow(std::chrono::milliseconds limit) {
  return MakeError(absl::StatusCode::kDeadlineExceeded,
                   absl::StrCat("format: takes over ", limit.count(), " ms to compile"),
                   {.reason = "FORMAT_TOO_SLOW", .field = "format"});
}

absl::Status TooLarge(const std::string& what) {
  return MakeError(absl::StatusCode::kResourceExhausted, "format: " + what,
                   {.reason = "FORMAT_TOO_LARGE", .field = "format"});
}

// What a library says of a format may quote it, and comes from a process that is not trusted.
absl::Status Invalid(std::string_view reason) {
  std::string text;
  for (const char c : reason.substr(0, kMaxReasonBytes)) text += c >= ' ' && c <= '~' ? c : '?';
  return MakeError(absl::StatusCode::kInvalidArgument, "format: cannot be enforced",
                   {.reason = "INVALID_FIELD", .field = "format", .unlogged = std::move(text)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<FormatHelper>> FormatHelper::Start(FormatHelperOptions options) {
  ASSIGN_OR_RETURN(SocketPair sockets, MakeSocketPair());
  const pid_t server = getpid();
  // The helper unblocks signals once it ignores those that are for the server.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  const int error = errno;
  if (pid == 0) {
    sockets.ours.Reset();
    RunHelper(options, server, std::move(sockets.theirs));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no process to compile formats in: ", std::strerror(error)));
  }
  return std::unique_ptr<FormatHelper>(
      new FormatHelper(std::move(options), pid, std::move(sockets.ours)));
}

FormatHelper::~FormatHelper() {
  kill(pid_, SIGKILL);  // its children end with it
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::Status FormatHelper::SetVocabulary(const FormatVocabulary& vocabulary) {
  const MutexLock lock(mutex_);
  const absl::Status sent =
      SendText(socket_.get(), kVocabularyPart, kVocabularyEnd, BytesOf(vocabulary), kNoDeadline);
  return sent.ok() ? sent : HelperDied();
}

absl::StatusOr<Descriptor> FormatHelper::BeginChild(std::chrono::milliseconds limit,
                                                    Clock::time_point deadline) {
  ASSIGN_OR_RETURN(SocketPair sockets, MakeSocketPair());
  ByteWriter milliseconds;
  milliseconds.Number(static_cast<uint32_t>(std::clamp<int64_t>(limit.count(), 1, UINT32_MAX)));
  const MutexLock lock(mutex_);
  const absl::Status sent =
      SendPacket(socket_.get(), kCompile, milliseconds.Release(), deadline, sockets.theirs.get());
  if (absl::IsDeadlineExceeded(sent)) return sent;
  if (!sent.ok()) return HelperDied();
  return std::move(sockets.ours);
}

absl::StatusOr<std::string> FormatHelper::Compile(const AnswerFormat& format,
                                                  std::chrono::milliseconds limit,
                                                  Clock::time_point deadline) {
  const Clock::time_point over = Clock::now() + limit;
  const Clock::time_point until = std::min(over, deadline);
  const auto late = [&] { return over <= deadline ? TooSlow(limit) : DeadlinePassed(false); };
  auto socket = BeginChild(limit, until);
  if (absl::IsDeadlineExceeded(socket.status())) return late();
  if (!socket.ok()) return socket.status();
  // Where it dies while it reads, what it left to be read says why.
  const absl::Status sent =
      SendText(socket->get(), kFormatPart, kFormatEnd, BytesOf(format), until);
  if (absl::IsDeadlineExceeded(sent)) return late();

  std::string result;
  while (true) {
    auto packet = ReceivePacket(socket->get(), until);
    if (absl::IsDeadlineExceeded(packet.status())) return late();
    if (!packet.ok()) return HelperDied();
    switch (packet->letter) {
      case kResultPart:
        if (result.size() + packet->bytes.size() > static_cast<size_t>(options_.result_bytes)) {
          return TooLarge(absl::StrCat("takes over ", options_.result_bytes, " bytes compiled"));
        }
        result += packet->bytes;
        break;
      case kResultEnd:
        return result;
      case kInvalid:
        return Invalid(packet->bytes);
      case kNoMemory:
      case kTooLarge:
        return TooLarge(absl::StrCat("takes over ", options_.memory_bytes, " bytes to compile"));
      case kTooSlow:
        return TooSlow(limit);
      case kFailed:
        return Invalid(absl::StrCat("compiling it ended with signal ", packet->bytes));
      default:
        return Invalid("what compiles it said something unknown");
    }
  }
}

}  // namespace eta
