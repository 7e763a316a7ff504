// Messages over a socket of packets (SOCK_SEQPACKET): each comes whole or not at all, with a letter
// that says what it is. Long texts go in several.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/files/descriptor.h"

namespace eta {

struct SocketPair {
  Descriptor ours;
  Descriptor theirs;
};
// Both are closed by execve. RESOURCE_EXHAUSTED where the process has no descriptors left.
absl::StatusOr<SocketPair> MakeSocketPair();

struct Packet {
  char letter = 0;
  std::string bytes;
  Descriptor descriptor;  // that came along
};

inline constexpr size_t kMaxPacketBytes = 32 << 10;
inline constexpr Clock::time_point kNoDeadline = Clock::time_point::max();

// Waits while the other side does not read. DEADLINE_EXCEEDED; UNAVAILABLE where nobody reads any
// more. `descriptor` goes along unless it is -1.
absl::Status SendPacket(int socket, char letter, std::string_view bytes, Clock::time_point deadline,
                        int descriptor = -1);
// `text` in packets of `part`, then an empty one of `last`.
absl::Status SendText(int socket, char part, char last, std::string_view text,
                      Clock::time_point deadline);

// The next one. DEADLINE_EXCEEDED; UNAVAILABLE at the end, and for what is no packet.
absl::StatusOr<Packet> ReceivePacket(int socket, Clock::time_point deadline);

// Waits until there is something to read, or an end. False: the time has passed.
bool AwaitReadable(int socket, Clock::time_point deadline);

}  // namespace eta
