#include "service/stats/page/metrics_exposer.h"

#include <netdb.h>
#include <sys/socket.h>

#include <chrono>
#include <exception>
#include <future>
#include <utility>
#include <vector>

#include "engine/base/files/descriptor.h"
#include "prometheus/exposer.h"

namespace eta {
namespace {

constexpr char kPath[] = "/metrics";

void Knock(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
  const Descriptor socket_of(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  connect(socket_of.get(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
}

}  // namespace

MetricsExposer::MetricsExposer(std::shared_ptr<prometheus::Collectable> page)
    : page_(std::move(page)) {}

absl::StatusOr<std::unique_ptr<MetricsExposer>> MetricsExposer::Start(
    const std::string& listen, std::shared_ptr<prometheus::Collectable> page) {
  std::unique_ptr<MetricsExposer> server(new MetricsExposer(std::move(page)));
  try {
    // No document root: nothing but the page answers.
    server->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", listen,                             //
                                 "num_threads", std::to_string(kThreads),               //
                                 "listen_backlog", std::to_string(kMaxWaiting),         //
                                 "max_request_size", std::to_string(kMaxRequestBytes),  //
                                 "request_timeout_ms", std::to_string(kTimeoutMs),      //
                                 "enable_keep_alive", "no",                             //
                                 "enable_directory_listing", "no"});
  } catch (const std::exception&) {  // it says no more than that it failed
    return absl::UnavailableError("--metrics_listen: cannot listen on " + listen +
                                  "; is the address of this host, and free?");
  }
  server->exposer_->RegisterCollectable(server->page_, kPath);
  server->host_ = listen.substr(0, listen.rfind(':'));
  server->port_ = server->exposer_->GetListeningPorts().at(0);
  server->url_ = "http://" + server->host_ + ":" + std::to_string(server->port_) + kPath;
  return server;
}

// The library waits for connections for two seconds at a time before it sees that it is to stop: a
// connection of ours ends the wait.
MetricsExposer::~MetricsExposer() {
  if (exposer_ == nullptr) return;
  const std::future<void> stopped = std::async(std::launch::async, [this] { exposer_.reset(); });
  while (stopped.wait_for(std::chrono::milliseconds(5)) == std::future_status::timeout) {
    Knock(host_, port_);
  }
}

}  // namespace eta
