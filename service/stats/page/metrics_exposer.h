// Serves the Prometheus page over HTTP, on a port of its own, compressed for who asks for gzip. Its
// few threads are bounded, and so is what a client may send and how long it may take.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

namespace prometheus {
class Exposer;
}

namespace eta {

class MetricsExposer {
 public:
  static constexpr int kThreads = 4;
  static constexpr int kMaxWaiting = 16;         // connections that the kernel keeps for later
  static constexpr int kMaxRequestBytes = 8192;  // of request line and headers
  static constexpr int kTimeoutMs = 2000;        // to send them, and to take the answer

  // Listens on `listen`, host:port but not of IPv6, port 0 for a free one, and answers with what
  // `page` collects, on its threads. UNAVAILABLE if the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsExposer>> Start(
      const std::string& listen, std::shared_ptr<prometheus::Collectable> page);
  // Waits for the answers that are being written.
  ~MetricsExposer();
  MetricsExposer(const MetricsExposer&) = delete;
  MetricsExposer& operator=(const MetricsExposer&) = delete;

  // http://host:port/metrics, with the port that was chosen.
  const std::string& url() const { return url_; }

 private:
  explicit MetricsExposer(std::shared_ptr<prometheus::Collectable> page);

  const std::shared_ptr<prometheus::Collectable> page_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string host_;
  int port_ = 0;
  std::string url_;
};

}  // namespace eta
