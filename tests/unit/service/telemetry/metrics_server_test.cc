// The page over HTTP, for friends and others.
#include "service/telemetry/page/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace eta {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A connection of its own.
class Peer {
 public:
  explicit Peer(const std::string& url) {
    const size_t colon = url.rfind(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(colon + 1))));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Peer() { close(socket_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool connected() const { return connected_; }
  // What the server has not read when it hangs up is lost.
  void Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t more = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (more <= 0) return;
      sent += static_cast<size_t>(more);
    }
  }
  // Until the server hangs up.
  std::string Receive() {
    std::string all;
    char bytes[4096];
    for (ssize_t got; (got = recv(socket_, bytes, sizeof(bytes), 0)) > 0;) {
      all.append(bytes, static_cast<size_t>(got));
    }
    return all;
  }

 private:
  int socket_;
  bool connected_;
};

class MetricsServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = MetricsServer::Start("127.0.0.1:0", [this] {
      ++pages_;
      return page_;
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Ask(const std::string& bytes) {
    Peer peer(server_->url());
    EXPECT_TRUE(peer.connected());
    peer.Send(bytes);
    return peer.Receive();
  }
  std::string Get(const std::string& path, const std::string& method = "GET") {
    return Ask(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }

  std::string page_ = "eta_up 1\n";
  std::atomic<int> pages_ = 0;
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ServesThePageAndSaysWhatItIs) {
  EXPECT_THAT(server_->url(), StartsWith("http://127.0.0.1:"));
  EXPECT_THAT(server_->url(), EndsWith("/metrics"));
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 9\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\neta_up 1\n"));
}

TEST_F(MetricsServerTest, ServesAPageOfMegabytesWhole) {
  page_.assign(size_t{4} << 20, 'x');
  const std::string answer = Get("/metrics");
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, page_.size());
}

TEST_F(MetricsServerTest, HeadHasNoBody) {
  const std::string answer = Get("/metrics", "HEAD");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 9\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST_F(MetricsServerTest, AParameterDoesNotMatter) {
  EXPECT_THAT(Get("/metrics?match=x"), StartsWith("HTTP/1.1 200"));
}

TEST_F(MetricsServerTest, OtherPathsAreNotFound) {
  for (const char* path : {"/", "/metrics/", "/metricsx", "/etc/passwd", "/../../etc/passwd",
                           "/metrics/..%2f..%2fetc/passwd", "/%00metrics", "/.htpasswd"}) {
    EXPECT_THAT(Get(path), Not(HasSubstr("200 OK"))) << path;
  }
  EXPECT_THAT(Get("/nothing"), StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(pages_, 0);
}

TEST_F(MetricsServerTest, OtherMethodsAreRefused) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    EXPECT_THAT(Get("/metrics", method), StartsWith("HTTP/1.1 405")) << method;
  }
  EXPECT_THAT(Get("/metrics", "CONNECT"), Not(HasSubstr("200 OK")));
  EXPECT_EQ(pages_, 0);
}

TEST_F(MetricsServerTest, BytesThatAreNoRequestGetNoPage) {
  const std::vector<std::string> messages = {
      std::string(1000, '\0') + "\r\n\r\n",
      "GET /metrics\r\n\r\n",
      "GET\r\n\r\n",
      "\r\n\r\n\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "GET /metrics HTTP/9.9\r\nHost: x\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + "\r\n\r\n",
      "GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n",
      "GET /metrics HTTP/1.1\r\nX: " + std::string(1'000'000, 'b') + "\r\n\r\n",
  };
  for (const std::string& message : messages) {
    EXPECT_THAT(Ask(message), Not(HasSubstr("eta_up"))) << message.substr(0, 40);
  }
  EXPECT_THAT(Get("/metrics"), EndsWith("eta_up 1\n"));
}

TEST_F(MetricsServerTest, ConnectionsThatSayNothingLeaveRoomForOthers) {
  std::vector<std::unique_ptr<Peer>> silent;
  for (int i = 0; i < MetricsServer::kThreads - 1; ++i) {
    silent.push_back(std::make_unique<Peer>(server_->url()));
    silent.back()->Send("GET /met");
  }
  EXPECT_THAT(Get("/metrics"), EndsWith("eta_up 1\n"));
}

TEST_F(MetricsServerTest, ManyAskAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j) {
        if (Get("/metrics").ends_with("eta_up 1\n")) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 160);
}

TEST_F(MetricsServerTest, AnAddressInUseIsAnError) {
  const std::string url = server_->url();
  const std::string address = url.substr(7, url.rfind('/') - 7);
  const auto second = MetricsServer::Start(address, [] { return std::string(); });
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

TEST_F(MetricsServerTest, StopsWhileConnectionsAreOpen) {
  Peer silent(server_->url());
  EXPECT_THAT(Get("/metrics"), EndsWith("eta_up 1\n"));
  server_.reset();
}

}  // namespace
}  // namespace eta
