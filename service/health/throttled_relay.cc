#include "service/health/throttled_relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

namespace eta {
namespace {

constexpr int kPauseMs = 5;  // once nothing may be said for the moment

// After a call that passed so many bytes; none may pass for the moment.
bool IsOpen(ssize_t bytes) {
  return bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

// Both are false once the other end has gone.
template <typename Buffer>
bool Read(int socket, Buffer& buffer, size_t most) {
  const ssize_t bytes =
      recv(socket, buffer.bytes.data(), std::min(most, buffer.bytes.size()), MSG_DONTWAIT);
  buffer.begin = 0;
  buffer.end = bytes > 0 ? static_cast<size_t>(bytes) : 0;
  return IsOpen(bytes);
}

template <typename Buffer>
bool Write(int socket, Buffer& buffer) {
  const ssize_t bytes = send(socket, buffer.bytes.data() + buffer.begin, buffer.end - buffer.begin,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
  if (bytes > 0) buffer.begin += static_cast<size_t>(bytes);
  return IsOpen(bytes);
}

// A descriptor without events is none: else its hang-up would be reported without an end.
pollfd Waiting(int fd, short events) {
  return {.fd = events != 0 ? fd : -1, .events = events, .revents = 0};
}

}  // namespace

absl::Status ThrottledRelay::Start() {
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return absl::UnavailableError("no file descriptor is left");
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void ThrottledRelay::Stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  if (!thread_.joinable()) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

Descriptor ThrottledRelay::Add(Descriptor client) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return Descriptor();
  }
  Descriptor theirs(ends[1]);
  auto connection = std::make_unique<Connection>();
  connection->client = std::move(client);
  connection->server.Reset(ends[0]);
  {
    const MutexLock lock(mutex_);
    if (stopped_) return Descriptor();
    new_.push_back(std::move(connection));
  }
  eventfd_write(wake_.get(), 1);
  return theirs;
}

void ThrottledRelay::Run() {
  std::vector<pollfd> waiting;
  while (true) {
    Refill();
    waiting.assign(1, Waiting(wake_.get(), POLLIN));
    for (const auto& connection : connections_) {
      const bool tells = !connection->answered.empty();
      const bool hears = !tells && connection->said.empty() && left_ > 0;
      waiting.push_back(Waiting(connection->client.get(),
                                static_cast<short>((tells ? POLLOUT : 0) | (hears ? POLLIN : 0))));
      waiting.push_back(Waiting(
          connection->server.get(),
          static_cast<short>((tells ? 0 : POLLIN) | (connection->said.empty() ? 0 : POLLOUT))));
    }
    poll(waiting.data(), waiting.size(), left_ > 0 ? -1 : kPauseMs);
    size_t heard = 0;  // those before had a turn
    for (size_t i = 0; i < connections_.size(); ++i) {
      const bool may_speak = left_ > 0;
      if (!Pass(*connections_[i], waiting[2 * i + 1].revents, waiting[2 * i + 2].revents)) {
        connections_[i].reset();
      }
      if (may_speak) heard = i + 1;
    }
    std::rotate(connections_.begin(), connections_.begin() + static_cast<ptrdiff_t>(heard),
                connections_.end());
    std::erase(connections_, nullptr);
    if (waiting.front().revents != 0) {
      eventfd_t count;
      eventfd_read(wake_.get(), &count);
      const MutexLock lock(mutex_);
      std::move(new_.begin(), new_.end(), std::back_inserter(connections_));
      new_.clear();
      if (stopped_) return connections_.clear();
    }
  }
}

void ThrottledRelay::Refill() {
  const Clock::time_point now = Clock::now();
  const auto came = static_cast<int64_t>(std::chrono::duration<double>(now - refilled_).count() *
                                         static_cast<double>(rate_.bytes_per_second));
  if (came == 0) return;  // what is less than a byte is not lost
  left_ = std::min(left_ + came, rate_.burst_bytes);
  refilled_ = now;
}

bool ThrottledRelay::Pass(Connection& connection, short client, short server) {
  auto& [client_end, server_end, said, answered] = connection;
  if ((client & (POLLIN | POLLHUP | POLLERR)) != 0 && said.empty() && answered.empty() &&
      left_ > 0) {
    if (!Read(client_end.get(), said, static_cast<size_t>(left_))) return false;
    left_ -= static_cast<int64_t>(said.end);
  }
  if (!said.empty() && !Write(server_end.get(), said)) return false;
  if ((server & (POLLIN | POLLHUP | POLLERR)) != 0 && answered.empty() &&
      !Read(server_end.get(), answered, answered.bytes.size())) {
    return false;
  }
  return answered.empty() || Write(client_end.get(), answered);
}

}  // namespace eta
