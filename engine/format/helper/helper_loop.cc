#include "engine/format/helper/helper_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/format/helper/byte_text.h"
#include "engine/format/helper/packet_letters.h"

namespace eta {
namespace {

constexpr int kPoliteness = 5;  // above the server's nice: steps go first where CPUs are short
constexpr char kMostLikelyKilled[] = "1000";

// It ends with the thread that forked it, even where that dies by a signal.
void EndWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != parent) _exit(0);  // too late
}

// A memory short system takes the helper before the server.
void OfferToBeKilled() {
  const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written =
      write(file, kMostLikelyKilled, sizeof kMostLikelyKilled - 1);
  close(file);
}

// Keeps `kept` and nothing else of what the server had open.
void LeaveFiles(int kept) {
  const int nothing = open("/dev/null", O_RDWR);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, standard);
  close_range(STDERR_FILENO + 1, static_cast<unsigned>(kept) - 1, 0);
  close_range(static_cast<unsigned>(kept) + 1, std::numeric_limits<unsigned>::max(), 0);
}

class Helper {
 public:
  Helper(const FormatHelperOptions& options, Descriptor socket, int signals)
      : options_(options), socket_(std::move(socket)), signals_(signals) {}

  // Until the server has ended.
  void Run() {
    if (!ReadVocabulary() || library_ == nullptr) return;
    while (Wait()) {
    }
  }

 private:
  struct Child {
    pid_t pid;
    Descriptor socket;  // the end that the child has, too: keeps the server waiting for a verdict
    Clock::time_point deadline;
    bool late = false;    // its time was over
    bool killed = false;  // it ends, and is not waited for any more
  };

  bool ReadVocabulary() {
    std::string bytes;
    while (true) {
      auto packet = ReceivePacket(socket_.get(), kNoDeadline);
      if (!packet.ok()) return false;
      if (packet->letter == kVocabularyPart) bytes += packet->bytes;
      if (packet->letter == kVocabularyEnd) break;
    }
    const auto vocabulary = eta::ReadVocabulary(bytes);
    if (!vocabulary) return false;
    auto made = options_.make_library(*vocabulary);
    if (made.ok()) library_ = *std::move(made);
    return true;
  }

  // One turn of the loop. False: the server has ended.
  bool Wait() {
    std::vector<pollfd> waits = {{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = signals_, .events = POLLIN, .revents = 0}};
    // Of a child's socket poll tells only that the server has closed its end.
    for (const Child& child : children_) {
      waits.push_back({.fd = child.killed ? -1 : child.socket.get(), .events = 0, .revents = 0});
    }
    if (poll(waits.data(), waits.size(), MillisecondsToWait()) < 0 && errno != EINTR) return false;
    size_t i = 2;
    const Clock::time_point now = Clock::now();
    for (Child& child : children_) {
      const bool left = waits[i++].revents != 0;
      if (child.killed || !(left || child.deadline <= now)) continue;
      child.late = !left;
      child.killed = true;
      kill(child.pid, SIGKILL);
    }
    if (waits[1].revents != 0) Reap();
    return waits[0].revents == 0 || Accept();
  }

  int MillisecondsToWait() const {
    int64_t least = -1;
    for (const Child& child : children_) {
      if (child.killed) continue;
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(child.deadline - Clock::now()).count();
      least = least < 0 ? std::max<int64_t>(left, 0) : std::min(least, std::max<int64_t>(left, 0));
    }
    return static_cast<int>(std::min<int64_t>(least, std::numeric_limits<int>::max()));
  }

  bool Accept() {
    auto packet = ReceivePacket(socket_.get(), Clock::now());
    if (absl::IsDeadlineExceeded(packet.status())) return true;
    if (!packet.ok()) return false;
    if (packet->letter != kCompile || !packet->descriptor.valid()) return true;
    const std::chrono::milliseconds limit(ByteReader(packet->bytes).Number());
    const pid_t helper = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      EndWith(helper);
      RunCompilation(options_, *library_, limit, packet->descriptor);
    }
    // Where there can be no process the socket closes, and the server hears of it as of memory.
    if (pid < 0) {
      Tell(packet->descriptor, kTooLarge, {});
      return true;
    }
    children_.push_back(
        {.pid = pid, .socket = std::move(packet->descriptor), .deadline = Clock::now() + limit});
    return true;
  }

  void Reap() {
    signalfd_siginfo ignored;
    while (read(signals_, &ignored, sizeof ignored) > 0) {
    }
    int status = 0;
    while (true) {
      const pid_t pid = waitpid(-1, &status, WNOHANG);
      if (pid <= 0) return;
      const auto child = std::find_if(children_.begin(), children_.end(),
                                      [pid](const Child& one) { return one.pid == pid; });
      if (child == children_.end()) continue;
      Judge(*child, status);
      children_.erase(child);
    }
  }

  static void Judge(const Child& child, int status) {
    if (WIFEXITED(status)) {
      if (WEXITSTATUS(status) != 0) Tell(child.socket, kTooLarge, {});
      return;
    }
    const int signal = WTERMSIG(status);
    if (child.late || signal == SIGXCPU) return Tell(child.socket, kTooSlow, {});
    // By a system that is short of memory.
    if (signal == SIGKILL) return Tell(child.socket, kTooLarge, {});
    Tell(child.socket, kFailed, std::to_string(signal));
  }

  // Does not wait for a server that does not read.
  static void Tell(const Descriptor& socket, char letter, std::string_view bytes) {
    SendPacket(socket.get(), letter, bytes, Clock::now()).IgnoreError();
  }

  const FormatHelperOptions& options_;
  const Descriptor socket_;
  const int signals_;  // tells of children that have ended
  std::unique_ptr<GrammarLibrary> library_;
  std::list<Child> children_;
};

}  // namespace

void RunHelper(const FormatHelperOptions& options, pid_t server, Descriptor socket) {
  EndWith(server);
  prctl(PR_SET_NAME, "eta-formats", 0, 0, 0);
  // A signal to the whole group, as a terminal sends it, is for the server: it may still need this
  // process while it drains.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) std::signal(signal, SIG_IGN);
  OfferToBeKilled();
  LeaveFiles(socket.get());
  [[maybe_unused]] const int level = nice(kPoliteness);
  sigset_t ended;
  sigemptyset(&ended);
  sigaddset(&ended, SIGCHLD);
  sigprocmask(SIG_SETMASK, &ended, nullptr);
  const int signals = signalfd(-1, &ended, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signals < 0) _exit(1);
  if (options.harden_helper) options.harden_helper();
  try {
    Helper(options, std::move(socket), signals).Run();
  } catch (const std::exception&) {  // no memory: the server sees that it has ended
    _exit(kExitNoMemory);
  }
  _exit(0);
}

}  // namespace eta
