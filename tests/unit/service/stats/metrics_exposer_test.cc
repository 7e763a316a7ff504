// The page over HTTP, for friends and others.
#include "service/stats/page/metrics_exposer.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/clock.h"
#include "prometheus/metric_family.h"

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

// A gauge with as many series as it is told.
class Page final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    ++collected;
    prometheus::MetricFamily family{
        .name = "eta_up", .help = "Up", .type = prometheus::MetricType::Gauge, .metric = {}};
    for (int i = 0; i < series; ++i) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      metric.gauge.value = 1;
      if (i > 0) metric.label.push_back({.name = "i", .value = std::to_string(i)});
    }
    return {family};
  }

  int series = 1;
  mutable std::atomic<int> collected = 0;
};

std::string Inflated(const std::string& compressed) {
  z_stream stream{};
  EXPECT_EQ(inflateInit2(&stream, 16 + MAX_WBITS), Z_OK);
  std::string bytes = compressed;
  stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string text;
  char part[4096];
  int result = Z_OK;
  while (result == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(part);
    stream.avail_out = sizeof(part);
    result = inflate(&stream, Z_NO_FLUSH);
    text.append(part, sizeof(part) - stream.avail_out);
  }
  EXPECT_EQ(result, Z_STREAM_END);
  inflateEnd(&stream);
  return text;
}

std::string BodyOf(const std::string& answer) {
  return answer.substr(answer.find("\r\n\r\n") + 4);
}

class MetricsExposerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = MetricsExposer::Start("127.0.0.1:0", page_);
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

  const std::shared_ptr<Page> page_ = std::make_shared<Page>();
  std::unique_ptr<MetricsExposer> server_;
};

TEST_F(MetricsExposerTest, ServesThePageAndSaysWhatItIs) {
  EXPECT_THAT(server_->url(), StartsWith("http://127.0.0.1:"));
  EXPECT_THAT(server_->url(), EndsWith("/metrics"));
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("# TYPE exposer_scrapes_total counter\n"));
  EXPECT_THAT(answer, EndsWith("# HELP eta_up Up\n# TYPE eta_up gauge\neta_up 1\n"));
}

TEST_F(MetricsExposerTest, ServesAPageOfMegabytesWhole) {
  page_->series = 100'000;
  const std::string answer = Get("/metrics");
  EXPECT_GT(BodyOf(answer).size(), 1u << 20);
  EXPECT_THAT(answer, EndsWith("eta_up{i=\"99999\"} 1\n"));
}

TEST_F(MetricsExposerTest, CompressesForWhoAsksForIt) {
  page_->series = 10'000;
  const std::string plain = BodyOf(Get("/metrics"));
  const std::string answer =
      Ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Encoding: gzip\r\n"));
  EXPECT_LT(BodyOf(answer).size(), plain.size() / 4);
  const std::string text = Inflated(BodyOf(answer));
  EXPECT_EQ(text.substr(text.find("# HELP eta_up")), plain.substr(plain.find("# HELP eta_up")));
}

TEST_F(MetricsExposerTest, AParameterDoesNotMatter) {
  EXPECT_THAT(Get("/metrics?match=x"), StartsWith("HTTP/1.1 200"));
}

TEST_F(MetricsExposerTest, OtherPathsAreNotFound) {
  for (const char* path :
       {"/", "/metric", "/etc/passwd", "/../../etc/passwd", "/%00metrics", "/.htpasswd"}) {
    EXPECT_THAT(Get(path), Not(HasSubstr("200 OK"))) << path;
  }
  EXPECT_THAT(Get("/nothing"), StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(page_->collected, 0);
}

TEST_F(MetricsExposerTest, OtherMethodsAreRefused) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "HEAD", "CONNECT"}) {
    EXPECT_THAT(Get("/metrics", method), StartsWith("HTTP/1.1 4")) << method;
  }
  EXPECT_EQ(page_->collected, 0);
}

TEST_F(MetricsExposerTest, BytesThatAreNoRequestGetNoPage) {
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

TEST_F(MetricsExposerTest, ConnectionsThatSayNothingLeaveRoomForOthers) {
  std::vector<std::unique_ptr<Peer>> silent;
  for (int i = 0; i < MetricsExposer::kThreads - 1; ++i) {
    silent.push_back(std::make_unique<Peer>(server_->url()));
    silent.back()->Send("GET /met");
  }
  EXPECT_THAT(Get("/metrics"), EndsWith("eta_up 1\n"));
}

TEST_F(MetricsExposerTest, ManyAskAtOnce) {
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

TEST_F(MetricsExposerTest, AnAddressInUseIsAnError) {
  const std::string url = server_->url();
  const std::string address = url.substr(7, url.rfind('/') - 7);
  const auto second = MetricsExposer::Start(address, page_);
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

TEST_F(MetricsExposerTest, StopsWhileConnectionsAreOpen) {
  Peer silent(server_->url());
  EXPECT_THAT(Get("/metrics"), EndsWith("eta_up 1\n"));
  server_.reset();
}

TEST_F(MetricsExposerTest, StopsAtOnceWhereNobodyIsConnected) {
  const Clock::time_point begin = Clock::now();
  server_.reset();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1)) << "the library waits two by itself";
}

}  // namespace
}  // namespace eta
