#include "service/connections/acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// The default of max_connections is the file descriptors divided by this; everything else has the
// others.
constexpr int kFilesPerConnection = 4;
constexpr int kBatch = 64;  // connections of one socket before the next socket's turn
// The pause after a batch of refusals, or when the system lacks something: a flood of connections
// must not take a core. Connections that come meanwhile wait in the kernel.
constexpr int kPauseMs = 5;
constexpr std::chrono::seconds kSayPeriod{10};

int FileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

Descriptor Reserve() {
  return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

Acceptor::Acceptor(Options options, Log& log) : options_(std::move(options)), log_(log) {}

absl::Status Acceptor::Listen() {
  const int files = FileLimit();
  int max = options_.max_connections;
  if (max == 0) max = std::clamp(files / kFilesPerConnection, 1, kDefaultMax);
  if (max > files / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_connections: needs twice as many file descriptors, and this process "
                     "may have ",
                     files));
  }
  ASSIGN_OR_RETURN(sockets_, ListenSockets::Open(options_.listen));
  table_ = std::make_unique<ConnectionTable>(max, options_.max_connections_per_peer);
  reserve_ = Reserve();
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!reserve_.valid() || !wake_.valid()) {
    return absl::UnavailableError("--listen: this process has no file descriptors left");
  }
  return absl::OkStatus();
}

void Acceptor::Begin(std::function<void(int fd)> serve) {
  serve_ = std::move(serve);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }
  sockets_.Close();
}

ConnectionUsage Acceptor::Usage() const {
  return {.open = table_ == nullptr ? 0 : table_->Open(),
          .max = table_ == nullptr ? 0 : table_->max(),
          .accepted = accepted_,
          .refused_full = refused_full_,
          .refused_peer = refused_peer_,
          .refused_no_files = refused_no_files_,
          .accept_errors = accept_errors_};
}

void Acceptor::Run() {
  std::vector<pollfd> waiting = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const Descriptor& socket : sockets_.sockets()) {
    waiting.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
  }
  bool tired = false;
  while (true) {
    poll(waiting.data(), tired ? 1 : waiting.size(), tired ? kPauseMs : -1);
    if (waiting.front().revents != 0) return;
    if (std::exchange(tired, false)) continue;
    for (size_t i = 1; i < waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      const int64_t refused = refused_full_ + refused_peer_;
      Outcome outcome = Outcome::kMore;
      for (int n = 0; n < kBatch && outcome == Outcome::kMore; ++n) {
        outcome = Accept(waiting[i].fd);
      }
      if (outcome == Outcome::kTired || refused_full_ + refused_peer_ - refused >= kBatch / 2) {
        tired = true;
      }
    }
  }
}

Acceptor::Outcome Acceptor::Accept(int socket) {
  // A descriptor that came back goes to the reserve before a connection takes it.
  if (!reserve_.valid()) reserve_ = Reserve();
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  const int fd =
      accept4(socket, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return Failed(socket, errno);
  switch (table_->Add(fd, PeerKey(peer))) {
    case ConnectionTable::Room::kYes:
      ++accepted_;
      serve_(fd);
      break;
    case ConnectionTable::Room::kFull:
      Refuse(fd, refused_full_, "as many as --max_connections are open");
      break;
    case ConnectionTable::Room::kPeerFull:
      Refuse(fd, refused_peer_, "one peer has as many as --max_connections_per_peer open");
      break;
  }
  return Outcome::kMore;
}

Acceptor::Outcome Acceptor::Failed(int socket, int error) {
  if (error == EAGAIN || error == EWOULDBLOCK) return Outcome::kNone;
  if (error == EINTR) return Outcome::kMore;
  ++accept_errors_;
  if (error != EMFILE && error != ENFILE) {
    // The error concerns this connection alone (accept(2)), unless the kernel lacks memory.
    return error == ENOBUFS || error == ENOMEM ? Outcome::kTired : Outcome::kMore;
  }
  reserve_.Reset();
  const int fd = accept4(socket, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) Refuse(fd, refused_no_files_, "no file descriptor is left");
  reserve_ = Reserve();  // fails if another thread was faster; Accept tries again
  return Outcome::kTired;
}

void Acceptor::Refuse(int fd, std::atomic<int64_t>& count, const char* why) {
  ++count;  // before close: a peer that sees its connection end finds it counted
  close(fd);
  const Clock::time_point now = Clock::now();
  if (said_ && now - *said_ < kSayPeriod) return;
  said_ = now;
  log_.Write(LogEvent(LogLevel::kWarning, "connections_refused",
                      std::string("connections are refused: ") + why)
                 .Add("refused_full", refused_full_.load())
                 .Add("refused_peer", refused_peer_.load())
                 .Add("refused_no_files", refused_no_files_.load()));
}

}  // namespace eta
