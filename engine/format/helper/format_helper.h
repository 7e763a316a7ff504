// A process beside the server in which formats of answers are compiled: what compiles them can
// neither be stopped nor bounded, and a process can.
//
// It is forked when the server starts, before there are threads, secrets, or the filter that keeps
// the server from forking. It has the tokens of the model, once they are known, and forks a child
// for each format, with a limit of memory, which it kills when the time is over or nobody waits any
// more. It cannot be started again: when it has died the server goes on without.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "engine/format/helper/packets.h"
#include "engine/format/library/grammar_library.h"
#include "engine/format/vocabulary.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

struct FormatHelperOptions {
  // Of one compilation, beyond what the tokens take. Not in a build with sanitizers, which reserve
  // more than any limit.
  int64_t memory_bytes = int64_t{1} << 30;
  // What the server gets back of one compilation at most. Reading it takes up to eight times as
  // much for a moment.
  int64_t result_bytes = int64_t{32} << 20;
  // Called in the helper before it hears of anything, and in each child: gives up rights.
  std::function<void()> harden_helper;
  std::function<void()> harden_child;
  MakeLibrary make_library = MakeGrammarLibrary;
};

class FormatHelper {
 public:
  // Forks. The calling thread is the only one of the process, and lives as long as the process: the
  // helper ends with it. RESOURCE_EXHAUSTED where there can be no process.
  static absl::StatusOr<std::unique_ptr<FormatHelper>> Start(FormatHelperOptions options);
  ~FormatHelper();
  FormatHelper(const FormatHelper&) = delete;
  FormatHelper& operator=(const FormatHelper&) = delete;

  // Once, before the first Compile. UNAVAILABLE where the helper has died.
  absl::Status SetVocabulary(const FormatVocabulary& vocabulary);

  // What GrammarLibrary::Compile makes of a format, in a child that has `limit` for it. Waits at
  // most until `deadline`. Any thread. Not to be trusted: whoever sent the format may have had a
  // hand in it. INVALID_ARGUMENT: what it says; DEADLINE_EXCEEDED (FORMAT_TOO_SLOW): `limit` is
  // over; DEADLINE_EXCEEDED (DEADLINE_QUEUED): `deadline` has passed before; RESOURCE_EXHAUSTED
  // (FORMAT_TOO_LARGE): it took more memory; UNAVAILABLE (FORMATS_UNAVAILABLE): the helper has
  // died.
  absl::StatusOr<std::string> Compile(const AnswerFormat& format, std::chrono::milliseconds limit,
                                      Clock::time_point deadline);

  pid_t pid() const { return pid_; }

 private:
  FormatHelper(FormatHelperOptions options, pid_t pid, Descriptor socket)
      : options_(std::move(options)), pid_(pid), socket_(std::move(socket)) {}

  // A new child has the other end of the socket that this returns.
  absl::StatusOr<Descriptor> BeginChild(std::chrono::milliseconds limit, Clock::time_point deadline)
      EXCLUDES(mutex_);

  const FormatHelperOptions options_;
  const pid_t pid_;
  Mutex mutex_;  // of packets to the helper: one thread sends at a time
  const Descriptor socket_;
};

}  // namespace eta
