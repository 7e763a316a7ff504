// A second listener that answers grpc.health.v1 and nothing else, in plaintext: for probes that
// speak no TLS and have no credentials, such as the kubelet's. It gives the same answers as the
// main listener. It has a server of its own, so that no other method can be reached through it. It
// reads no faster than probes need, so that a flood makes it slow and cannot make it large.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "service/connections/acceptor.h"
#include "service/health/throttled_relay.h"
#include "service/log/log.h"

namespace eta {

class HealthListener {
 public:
  // `address` as Acceptor takes it.
  HealthListener(const std::string& address, Log& log);
  ~HealthListener() { Stop(); }
  HealthListener(const HealthListener&) = delete;
  HealthListener& operator=(const HealthListener&) = delete;

  absl::Status Start();
  // Null before Start.
  grpc::HealthCheckServiceInterface* health();
  const std::string& address() const { return acceptor_.address(); }
  void Stop();

 private:
  static constexpr int kMaxConnections = 64;  // probes are few
  // A probe says half a kilobyte. With all connections flooding it, the next waits two thirds of a
  // second for its turn.
  static constexpr ThrottledRelay::Rate kRate = {.bytes_per_second = 128 * 1024,
                                                 .burst_bytes = 32 * 1024};

  grpc::CallbackGenericService others_;  // every other method: UNIMPLEMENTED
  Acceptor acceptor_;
  ThrottledRelay relay_{kRate};
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace eta
