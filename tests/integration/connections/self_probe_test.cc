// The probe of a listener that takes connections and answers none of them.
#include "service/health/self_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;

// Listens on a free port of this host. The kernel takes connections, and nobody answers.
class DeafListener {
 public:
  DeafListener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd_, any, length) == 0 && listen(fd_, 64) == 0 &&
        getsockname(fd_, any, &length) == 0) {
      address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    }
  }
  ~DeafListener() { close(fd_); }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

bool Becomes(const SelfProbe& probe, bool deaf) {
  for (int i = 0; i < 2000; ++i) {
    if (probe.Deaf() == deaf) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

class SelfProbeTest : public ServiceTest {};

TEST_F(SelfProbeTest, NoticesThatNobodyAnswersAndThatSomebodyDoesAgain) {
  std::optional<DeafListener> listener;
  listener.emplace();
  const std::string address = listener->address();
  ASSERT_NE(address, "");
  SelfProbe probe(
      address, grpc::InsecureChannelCredentials(), milliseconds(600), [] { return 0; },
      Log::Nowhere());
  EXPECT_FALSE(probe.Deaf()) << "not before its patience is over";
  EXPECT_TRUE(Becomes(probe, true));

  listener.reset();
  ServerOptions options;
  options.listen = address;
  auto server = Server::Start(options, {.engine = *engine_}).value();
  EXPECT_TRUE(Becomes(probe, false));
  server.reset();
  EXPECT_TRUE(Becomes(probe, true));
}

TEST_F(SelfProbeTest, AServerThatRefusesBecauseItIsFullIsNotDeaf) {
  const DeafListener listener;
  std::atomic<int64_t> refused = 0;
  std::atomic<int> asked = 0;
  SelfProbe probe(
      listener.address(), grpc::InsecureChannelCredentials(), milliseconds(300),
      [&] {
        ++asked;
        return ++refused;
      },
      Log::Nowhere());
  for (int i = 0; i < 2000 && asked < 12; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_GE(asked, 12) << "six probes";
  EXPECT_FALSE(probe.Deaf());
}

TEST_F(SelfProbeTest, EndsAtOnceWhileItWaitsForAnAnswer) {
  const DeafListener listener;
  const auto begin = Clock::now();
  {
    const SelfProbe probe(
        listener.address(), grpc::InsecureChannelCredentials(), std::chrono::hours(1),
        [] { return 0; }, Log::Nowhere());
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::minutes(1)) << "of the ten that a call has";
}

}  // namespace
}  // namespace eta::testing
