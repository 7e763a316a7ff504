// Hostile HTTP/2 at the front as it is shipped, and at the bare server: honest callers are served
// beside it, and what the server holds in memory does not grow. A second of each attack, a minute
// in the long run; figures are printed.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/client_call.h"
#include "tests/testing/error_details.h"
#include "tests/testing/front_process.h"
#include "tests/testing/hostile_peer.h"
#include "tests/testing/long_run.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tiny_model.h"

namespace eta::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kCallers = 4;
constexpr int kMaxCalls = 100;  // limit_conn in nginx.conf
constexpr int64_t kMaxGrowthKb = kAddressSanitizer ? 1024 * 1024 : 20 * 1024;
constexpr double kMinSuccess = 0.99;

std::vector<std::string> ServerFlags(const std::string& model, const std::string& listen) {
  return {"--model", model, "--listen", listen, "--kv_pool_bytes", "32MiB"};
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

v1::GenerateRequest ShortAnswer() {
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(8);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

struct Calls {
  int64_t good = 0;
  std::vector<std::string> bad;
  std::vector<double> milliseconds;  // of the good ones

  double Success() const {
    const auto all = static_cast<double>(good) + static_cast<double>(bad.size());
    return all == 0 ? 0.0 : static_cast<double>(good) / all;
  }
  double Quantile(double share) {
    if (milliseconds.empty()) return 0.0;
    std::sort(milliseconds.begin(), milliseconds.end());
    return milliseconds[static_cast<size_t>(share * static_cast<double>(milliseconds.size() - 1))];
  }
};

// Honest callers with a connection each, one short answer after another, a few a second as people
// are, for as long as `during` takes.
Calls CallWhile(const std::string& address, const std::function<void()>& during,
                int num_callers = kCallers) {
  std::atomic<bool> stop = false;
  std::vector<Calls> calls(static_cast<size_t>(num_callers));
  std::vector<std::thread> callers;
  for (Calls& mine : calls) {
    callers.emplace_back([&stop, &mine, address] {
      const auto stub = v1::EtaService::NewStub(NewChannel(address));
      do {
        const auto begin = Clock::now();
        ClientCall call(*stub);
        call.Start(ShortAnswer());
        call.ReadText();
        const grpc::Status status = call.Finish();
        if (status.ok() && call.finished.usage().output_tokens() == 8) {
          ++mine.good;
          mine.milliseconds.push_back(
              std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
        } else {
          mine.bad.push_back(std::to_string(status.error_code()) + " " + status.error_message());
        }
        std::this_thread::sleep_for(milliseconds(20));
      } while (!stop);
    });
  }
  during();
  stop = true;
  for (std::thread& caller : callers) caller.join();
  Calls all;
  for (Calls& mine : calls) {
    all.good += mine.good;
    all.bad.insert(all.bad.end(), mine.bad.begin(), mine.bad.end());
    all.milliseconds.insert(all.milliseconds.end(), mine.milliseconds.begin(),
                            mine.milliseconds.end());
  }
  return all;
}

void RunAttack(const Attack& attack, const std::string& target, milliseconds duration) {
  std::atomic<bool> stop = false;
  std::thread attacker([&] { attack.run(target, stop); });
  std::this_thread::sleep_for(duration);
  stop = true;
  attacker.join();
}

class HostileTest : public ::testing::Test {
 protected:
  void Start(const std::string& listen) {
    server_ = std::make_unique<ServerProcess>(ETA_BINARY_DIR "/eta-server",
                                              ServerFlags(model_.path(), listen));
    address_ = server_->AwaitAddress();
    ASSERT_NE(address_, "") << server_->AwaitExit().errors;
  }
  void TearDown() override {
    if (server_ == nullptr) return;
    server_->Signal(SIGTERM);
    const ServerProcess::Exit exit = server_->AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
  }

  grpc::Status AnswersANewConnection() {
    const auto stub = v1::EtaService::NewStub(NewChannel(address_));
    ClientCall call(*stub);
    call.context.set_deadline(std::chrono::system_clock::now() + seconds(120));
    call.Start(ShortAnswer());
    call.ReadText();
    return call.Finish();
  }

  const TinyModel model_;
  const TempFolder folder_;
  std::unique_ptr<ServerProcess> server_;
  std::string address_;
};

TEST_F(HostileTest, TheFrontShieldsTheServer) {
  if (!FrontProcess::Installed()) GTEST_SKIP() << "nginx is not installed";
  ASSERT_NO_FATAL_FAILURE(Start("unix:" + folder_.path() + "/server.sock"));
  FrontProcess front({.server = address_, .certificate = "", .key = ""});
  ASSERT_NE(front.address(), "") << front.process().AwaitExit().errors;
  const milliseconds duration = LongRun() ? seconds(60) : seconds(1);

  // What as many calls cost as the front lets one address have at a time is no growth.
  CallWhile(
      front.address(), [] { std::this_thread::sleep_for(milliseconds(500)); }, kMaxCalls);
  server_->ForgetPeakMemory();
  Calls calm = CallWhile(front.address(), [&] { std::this_thread::sleep_for(duration); });
  EXPECT_THAT(calm.bad, ::testing::IsEmpty());
  const int64_t memory = server_->PeakMemory();
  std::printf("%-24s %5s calls  p50 %7s ms  p99 %7s ms  success        memory\n", "", "", "", "");
  std::printf("%-24s %5ld calls  p50 %7.1f ms  p99 %7.1f ms  %.4f  %6ld KB\n", "(none)",
              static_cast<long>(calm.good), calm.Quantile(0.5), calm.Quantile(0.99), calm.Success(),
              static_cast<long>(memory));
  for (const Attack& attack : Attacks()) {
    server_->ForgetPeakMemory();
    Calls calls = CallWhile(front.address(), [&] { RunAttack(attack, front.address(), duration); });
    const int64_t growth = server_->PeakMemory() - memory;
    std::printf("%-24s %5ld calls  p50 %7.1f ms  p99 %7.1f ms  %.4f  %+6ld KB\n",
                attack.name.c_str(), static_cast<long>(calls.good), calls.Quantile(0.5),
                calls.Quantile(0.99), calls.Success(), static_cast<long>(growth));
    EXPECT_GE(calls.Success(), kMinSuccess)
        << attack.name << ": " << calls.bad.size() << " calls failed, the first with "
        << (calls.bad.empty() ? "" : calls.bad.front());
    EXPECT_LE(growth, kMaxGrowthKb) << attack.name;
  }
}

// 300 MB of zeros in 300 KB.
TEST_F(HostileTest, ABombIsRefusedUnopened) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  EXPECT_TRUE(AnswersANewConnection().ok());
  const auto bomb = std::find_if(Attacks().begin(), Attacks().end(),
                                 [](const Attack& attack) { return attack.name == "gzip_bomb"; });
  server_->ForgetPeakMemory();
  const int64_t memory = server_->PeakMemory();
  RunAttack(*bomb, address_, milliseconds(200));
  EXPECT_TRUE(AnswersANewConnection().ok());
  EXPECT_LE(server_->PeakMemory() - memory, kMaxGrowthKb);
}

// The bare server has no such defence (SECURITY.md): it must not crash, nor stay deaf, nor leave
// calls behind.
TEST_F(HostileTest, TheBareServerAnswersAfterEveryAttack) {
  ASSERT_NO_FATAL_FAILURE(Start("127.0.0.1:0"));
  for (const Attack& attack : Attacks()) {
    RunAttack(attack, address_, milliseconds(LongRun() ? 5000 : 100));
    const grpc::Status status = AnswersANewConnection();
    EXPECT_TRUE(status.ok()) << attack.name << ": " << status.error_message();
    ASSERT_TRUE(server_->Running()) << attack.name << server_->AwaitExit().errors;
    std::printf("%-24s peak memory %6ld KB\n", attack.name.c_str(),
                static_cast<long>(server_->PeakMemory()));
    server_->ForgetPeakMemory();
  }
}

}  // namespace
}  // namespace eta::testing
