// Raw sockets of a client.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "engine/base/files/descriptor.h"

namespace eta::testing {

// A TCP socket whose reads time out.
inline Descriptor NewSocket() {
  Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};
  setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  return made;
}

// Waits for the other end to close. True if it closed in order with nothing left to read.
inline bool HasEnded(const Descriptor& client) {
  char byte;
  return recv(client.get(), &byte, 1, 0) == 0;
}

}  // namespace eta::testing
