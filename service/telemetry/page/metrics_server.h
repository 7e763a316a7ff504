// Serves the Prometheus page over HTTP, on a port of its own: GET /metrics; every other path is
// 404, every other method 405. Its few threads are bounded, and so is what a client may send and
// how long it may take.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_connection;
struct mg_context;

namespace eta {

class MetricsServer {
 public:
  static constexpr int kThreads = 4;
  static constexpr int kMaxWaiting = 16;         // connections that the kernel keeps for later
  static constexpr int kMaxRequestBytes = 8192;  // of request line and headers
  static constexpr int kTimeoutMs = 2000;        // to send them, and to take the answer

  // Listens on `listen`, host:port but not of IPv6, port 0 for a free one, and answers with what
  // `page` returns, which is called on its threads. UNAVAILABLE if the address cannot be listened
  // on.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              std::function<std::string()> page);
  // Waits for the answers that are being written.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // http://host:port/metrics, with the port that was chosen.
  const std::string& url() const { return url_; }

 private:
  explicit MetricsServer(std::function<std::string()> page) : page_(std::move(page)) {}
  static int Answer(mg_connection* connection);
  void Stop();

  const std::function<std::string()> page_;
  mg_context* context_ = nullptr;
  std::string host_;
  int port_ = 0;
  std::string url_;
};

}  // namespace eta
