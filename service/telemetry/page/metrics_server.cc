#include "service/telemetry/page/metrics_server.h"

#include <chrono>
#include <future>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "civetweb.h"

namespace eta {
namespace {

constexpr char kPath[] = "/metrics";

void Send(mg_connection* connection, std::string_view status, std::string_view type,
          std::string_view extra_headers, std::string_view body, bool head) {
  std::string headers = "HTTP/1.1 ";
  ((headers += status) += "\r\nContent-Type: ") += type;
  headers += "\r\nContent-Length: " + std::to_string(body.size());
  headers += "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
  (headers += extra_headers) += "Connection: close\r\n\r\n";
  mg_write(connection, headers.data(), headers.size());
  if (!head) mg_write(connection, body.data(), body.size());
}

}  // namespace

int MetricsServer::Answer(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const auto& server = *static_cast<const MetricsServer*>(request.user_data);
  const std::string_view method = request.request_method;
  const bool head = method == "HEAD";
  constexpr std::string_view kText = "text/plain; charset=utf-8";
  if (request.local_uri == nullptr || std::string_view(request.local_uri) != kPath) {
    Send(connection, "404 Not Found", kText, "", "only /metrics is here\n", head);
    return 404;
  }
  if (method != "GET" && !head) {
    Send(connection, "405 Method Not Allowed", kText, "Allow: GET, HEAD\r\n", "GET only\n", false);
    return 405;
  }
  std::string page;
  try {
    page = server.page_();
  } catch (const std::bad_alloc&) {
    Send(connection, "503 Service Unavailable", kText, "", "no memory\n", head);
    return 503;
  }
  Send(connection, "200 OK", "text/plain; version=0.0.4; charset=utf-8", "", page, head);
  return 200;
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& listen, std::function<std::string()> page) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(page)));
  const std::string threads = std::to_string(kThreads);
  const std::string waiting = std::to_string(kMaxWaiting);
  const std::string bytes = std::to_string(kMaxRequestBytes);
  const std::string timeout = std::to_string(kTimeoutMs);
  // No document root: nothing but begin_request answers.
  const char* options[] = {"listening_ports",
                           listen.c_str(),
                           "num_threads",
                           threads.c_str(),
                           "listen_backlog",
                           waiting.c_str(),
                           "max_request_size",
                           bytes.c_str(),
                           "request_timeout_ms",
                           timeout.c_str(),
                           "enable_keep_alive",
                           "no",
                           "enable_directory_listing",
                           "no",
                           nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &MetricsServer::Answer;
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };  // says nothing
  mg_init_library(MG_FEATURES_DEFAULT);
  server->context_ = mg_start(&callbacks, server.get(), options);
  mg_server_port port{};
  if (server->context_ == nullptr || mg_get_server_ports(server->context_, 1, &port) != 1) {
    return absl::UnavailableError("--metrics_listen: cannot listen on " + listen +
                                  "; is the address of this host, and free?");
  }
  server->host_ = listen.substr(0, listen.rfind(':'));
  server->port_ = port.port;
  server->url_ = "http://" + server->host_ + ":" + std::to_string(port.port) + kPath;
  return server;
}

MetricsServer::~MetricsServer() {
  if (context_ != nullptr) Stop();
  mg_exit_library();
}

// The library looks for connections for two seconds at a time before it sees that it is to stop: a
// connection of ours ends the wait.
void MetricsServer::Stop() {
  std::promise<void> stopped;
  std::thread stop([&] {
    mg_stop(context_);
    stopped.set_value();
  });
  const std::future<void> done = stopped.get_future();
  while (done.wait_for(std::chrono::milliseconds(5)) == std::future_status::timeout) {
    char error[64];
    mg_connection* const knock =
        mg_connect_client(host_.c_str(), port_, /*use_ssl=*/0, error, sizeof(error));
    if (knock != nullptr) mg_close_connection(knock);
  }
  stop.join();
}

}  // namespace eta
