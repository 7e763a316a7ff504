// What the gRPC library has to say, as events of the log instead of lines of its own: "grpc", but
// "denied" where it refused a TLS handshake.
#pragma once

#include "service/log/log.h"

namespace eta {

// While it lives. One at a time.
class GrpcLog {
 public:
  explicit GrpcLog(Log& log);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace eta
