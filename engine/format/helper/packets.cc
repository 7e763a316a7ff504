#include "engine/format/helper/packets.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

namespace eta {
namespace {

absl::Status TimePassed() {
  return absl::DeadlineExceededError("the time has passed");
}

absl::Status Ended() {
  return absl::UnavailableError("the other side has ended");
}

// What poll waits at most: rounded up, so that it does not turn around in the last millisecond.
int MillisecondsUntil(Clock::time_point deadline) {
  if (deadline == kNoDeadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
}

bool Await(int socket, short events, Clock::time_point deadline) {
  pollfd waits{.fd = socket, .events = events, .revents = 0};
  while (true) {
    const int milliseconds = MillisecondsUntil(deadline);
    const int ready = poll(&waits, 1, milliseconds);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
    if (milliseconds == 0) return false;
  }
}

// Space for one descriptor beside a message.
union Ancillary {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

Descriptor DescriptorOf(msghdr& message) {
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return Descriptor();
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return Descriptor(descriptor);
}

}  // namespace

absl::StatusOr<SocketPair> MakeSocketPair() {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    return absl::ResourceExhaustedError(std::string("no sockets: ") + std::strerror(errno));
  }
  return SocketPair{.ours = Descriptor(sockets[0]), .theirs = Descriptor(sockets[1])};
}

absl::Status SendPacket(int socket, char letter, std::string_view bytes, Clock::time_point deadline,
                        int descriptor) {
  std::array<iovec, 2> parts = {
      {{.iov_base = &letter, .iov_len = 1},
       {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  Ancillary ancillary{};
  if (descriptor >= 0) {
    message.msg_control = ancillary.bytes.data();
    message.msg_controllen = ancillary.bytes.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  while (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Ended();
    if (!Await(socket, POLLOUT, deadline)) return TimePassed();
  }
  return absl::OkStatus();
}

absl::Status SendText(int socket, char part, char last, std::string_view text,
                      Clock::time_point deadline) {
  while (!text.empty()) {
    const std::string_view now = text.substr(0, kMaxPacketBytes);
    if (absl::Status sent = SendPacket(socket, part, now, deadline); !sent.ok()) return sent;
    text.remove_prefix(now.size());
  }
  return SendPacket(socket, last, {}, deadline);
}

bool AwaitReadable(int socket, Clock::time_point deadline) {
  return Await(socket, POLLIN, deadline);
}

absl::StatusOr<Packet> ReceivePacket(int socket, Clock::time_point deadline) {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  std::array<iovec, 2> parts = {
      {{.iov_base = &packet.letter, .iov_len = 1},
       {.iov_base = packet.bytes.data(), .iov_len = packet.bytes.size()}}};
  while (true) {
    if (!AwaitReadable(socket, deadline)) return TimePassed();
    Ancillary ancillary{};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    message.msg_control = ancillary.bytes.data();
    message.msg_controllen = ancillary.bytes.size();
    const ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // The last is told once, before what can still be read: the other side left something unread.
    const bool again = size < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ||
                                    errno == ECONNRESET);
    if (again) continue;
    if (size <= 0) return Ended();
    packet.descriptor = DescriptorOf(message);
    if ((message.msg_flags & MSG_TRUNC) != 0) return Ended();
    packet.bytes.resize(static_cast<size_t>(size) - 1);
    return packet;
  }
}

}  // namespace eta
