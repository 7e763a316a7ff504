// The messages of the gRPC library as events of the log: "grpc", or "denied" if it refused a TLS
// handshake.
#pragma once

#include "service/log/log.h"

namespace eta {

// Redirects the messages while it lives. One object at a time.
class GrpcLog {
 public:
  explicit GrpcLog(Log& log);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace eta
