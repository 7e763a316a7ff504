// Sockets of a client by hand.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "engine/base/descriptor.h"

namespace eta::testing {

// A TCP socket that waits for nothing in vain.
inline Descriptor NewSocket() {
  Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};
  setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  return made;
}

// Whether the other end has closed in order, with nothing left to read; waits for it.
inline bool HasEnded(const Descriptor& client) {
  char byte;
  return recv(client.get(), &byte, 1, 0) == 0;
}

}  // namespace eta::testing
