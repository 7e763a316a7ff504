// A client's bytes on their way to a server: all of them, in order, at no more than the rate, in
// turns with others', and only while the client reads.
#include "service/health/throttled_relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/net/client_socket.h"

namespace eta::testing {
namespace {

constexpr ThrottledRelay::Rate kFast = {.bytes_per_second = int64_t{1} << 40,
                                        .burst_bytes = int64_t{1} << 40};
constexpr timeval kSocketPatience = {.tv_sec = 20, .tv_usec = 0};

// A client, and the server's end of its connection through the relay.
struct Ends {
  Descriptor client, server;
};

Ends ConnectEnds(ThrottledRelay& relay) {
  int pair[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  Ends ends{.client = Descriptor(pair[0]), .server = relay.Add(Descriptor(pair[1]))};
  EXPECT_TRUE(ends.server.valid());
  fcntl(ends.server.get(), F_SETFL, 0);  // gRPC's is not blocking, this test's is
  for (const Descriptor* const end : {&ends.client, &ends.server}) {
    setsockopt(end->get(), SOL_SOCKET, SO_RCVTIMEO, &kSocketPatience, sizeof(kSocketPatience));
    setsockopt(end->get(), SOL_SOCKET, SO_SNDTIMEO, &kSocketPatience, sizeof(kSocketPatience));
  }
  return ends;
}

void Send(const Descriptor& to, const std::string& bytes) {
  EXPECT_EQ(send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}
// As much as the system takes at once.
size_t SendSome(const Descriptor& to, const std::string& bytes) {
  return static_cast<size_t>(std::max<ssize_t>(
      0, send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT)));
}
std::string Receive(const Descriptor& from, size_t count) {
  std::string bytes(count, '\0');
  const ssize_t got = recv(from.get(), bytes.data(), count, MSG_WAITALL);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  return bytes;
}
std::string ReceiveSome(const Descriptor& from) {
  std::string bytes(1 << 16, '\0');
  const ssize_t got = recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  return bytes;
}

std::string Noise(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string noise(bytes, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  return noise;
}

TEST(ThrottledRelay, PassesEverythingBothWays) {
  ThrottledRelay relay(kFast);
  ASSERT_TRUE(relay.Start().ok());
  const Ends ends = ConnectEnds(relay);
  const std::string question = Noise(300'001, 1), answer = Noise(2'000'003, 2);
  std::thread server([&] {
    EXPECT_EQ(Receive(ends.server, question.size()), question);
    Send(ends.server, answer);
  });
  Send(ends.client, question);
  EXPECT_EQ(Receive(ends.client, answer.size()), answer);
  server.join();
}

TEST(ThrottledRelay, AClientSaysNoMoreThanTheRateLetsIt) {
  constexpr ThrottledRelay::Rate kSlow = {.bytes_per_second = 100'000, .burst_bytes = 4'000};
  ThrottledRelay relay(kSlow);
  ASSERT_TRUE(relay.Start().ok());
  const auto begin = Clock::now();
  const Ends ends = ConnectEnds(relay);
  std::thread client([&] { Send(ends.client, Noise(40'000, 3)); });
  size_t come = 0;
  while (come < 40'000) {
    const size_t more = Receive(ends.server, 500).size();
    ASSERT_GT(more, 0u);
    come += more;
    const double passed = std::chrono::duration<double>(Clock::now() - begin).count();
    EXPECT_LE(static_cast<double>(come), static_cast<double>(kSlow.burst_bytes) +
                                             passed * static_cast<double>(kSlow.bytes_per_second));
  }
  client.join();
}

TEST(ThrottledRelay, WhoComesLastHasATurnToo) {
  constexpr int kFloods = 30;
  ThrottledRelay relay({.bytes_per_second = 100'000, .burst_bytes = 2'000});
  ASSERT_TRUE(relay.Start().ok());
  std::vector<Ends> floods;
  for (int i = 0; i < kFloods; ++i) floods.push_back(ConnectEnds(relay));
  const std::string noise = Noise(1 << 16, 4);
  size_t come = 0;
  const auto flood = [&] {
    for (const Ends& ends : floods) {
      SendSome(ends.client, noise);
      come += ReceiveSome(ends.server).size();
    }
  };
  while (come < 20'000) flood();
  const size_t before = come;
  const Ends late = ConnectEnds(relay);
  const std::string probe = Noise(500, 5);
  Send(late.client, probe);
  std::string heard;
  while (heard.size() < probe.size()) {
    heard += ReceiveSome(late.server);
    flood();
    // One turn of each, and more where this thread had to wait for a core.
    ASSERT_LE(come - before, 20 * kFloods * ThrottledRelay::kTurnBytes);
  }
  EXPECT_EQ(heard, probe);
}

// A flood of pings whose answers nobody reads is not read either.
TEST(ThrottledRelay, AClientThatDoesNotReadIsNotHeard) {
  ThrottledRelay relay(kFast);
  ASSERT_TRUE(relay.Start().ok());
  const Ends ends = ConnectEnds(relay);
  const Ends other = ConnectEnds(relay);
  const std::string noise = Noise(1 << 16, 6);
  // The server says each byte twice, until the client's end takes no more.
  size_t heard = 0;
  for (auto last = Clock::now(); Clock::now() - last < std::chrono::milliseconds(300);) {
    SendSome(ends.client, noise);
    const std::string come = ReceiveSome(ends.server);
    heard += come.size();
    if (!come.empty()) last = Clock::now();
    SendSome(ends.server, come + come);
  }
  EXPECT_LT(heard, size_t{8} << 20);
  Send(other.client, noise);
  EXPECT_EQ(Receive(other.server, noise.size()), noise) << "others are";
  // Once it reads it is heard again.
  std::string answers;
  while (ReceiveSome(ends.server).empty()) answers = ReceiveSome(ends.client);
}

TEST(ThrottledRelay, AnEndOfOneSideIsThatOfTheOther) {
  ThrottledRelay relay(kFast);
  ASSERT_TRUE(relay.Start().ok());
  Ends ends = ConnectEnds(relay);
  Send(ends.client, "bye");
  ends.client.Reset();
  EXPECT_EQ(Receive(ends.server, 3), "bye");
  EXPECT_TRUE(HasEnded(ends.server));
  ends = ConnectEnds(relay);
  Send(ends.server, "no more");
  ends.server.Reset();
  EXPECT_EQ(Receive(ends.client, 7), "no more");
  EXPECT_TRUE(HasEnded(ends.client));
}

TEST(ThrottledRelay, StopClosesAllAndWhatComesLater) {
  ThrottledRelay relay(kFast);
  ASSERT_TRUE(relay.Start().ok());
  const Ends ends = ConnectEnds(relay);
  relay.Stop();
  EXPECT_TRUE(HasEnded(ends.client));
  EXPECT_TRUE(HasEnded(ends.server));
  int pair[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const Descriptor client(pair[0]);
  EXPECT_FALSE(relay.Add(Descriptor(pair[1])).valid());
  EXPECT_TRUE(HasEnded(client));
}

}  // namespace
}  // namespace eta::testing
