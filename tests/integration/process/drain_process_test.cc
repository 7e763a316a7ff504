// SIGTERM under load, of the shipped server. No stream is cut within the grace, no call is taken
// after the delay, every stream ends whole or with its tokens counted, and the exit code is 0.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kClients = 6;
constexpr int kCallsAfterRefusal = 20;
constexpr milliseconds kDelay{200};

// No call may be taken 1 s after the signal. Sanitizers and a busy machine take longer.
milliseconds LastTakenWithin() {
  if (LongRun() && !kAddressSanitizer) return milliseconds(1000);
  return kDelay + milliseconds(5000);
}

struct Round {
  int number = 0;
  milliseconds timeout{0};  // of the drain
  int max_tokens = 0;       // of a stream
  milliseconds load{0};     // before the signal
};

// The result of one call, by its client's clock.
struct Outcome {
  std::string id;
  Clock::time_point begin, end;
  bool accepted = false;  // true: it got a message
  int64_t tokens = 0;     // tokens that it got
  bool finished = false;
  grpc::Status status;
};

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  auto channel = OwnConnection(address, grpc::InsecureChannelCredentials(), arguments);
  // gRPC 1.51 sometimes takes an attempt that goes on for a failed one and tries again.
  EXPECT_TRUE(
      channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(1)));
  return channel;
}

// A client that calls again and again until the server is gone, and a little longer.
class Caller {
 public:
  Caller(const std::string& address, const Round& round, int number)
      : stub_(v1::EtaService::NewStub(NewChannel(address))),
        round_(round),
        number_(number),
        thread_([this] { Run(); }) {}

  void AwaitFirstToken() const { streaming_.wait(false); }
  std::vector<Outcome> Join() {
    thread_.join();
    return std::move(outcomes_);
  }

 private:
  void Run() {
    for (int refused = 0; refused < kCallsAfterRefusal;) {
      outcomes_.push_back(Call(refused > 0 ? 1 : round_.max_tokens));
      if (!outcomes_.back().status.ok()) ++refused;
    }
  }

  Outcome Call(int max_tokens) {
    Outcome outcome;
    outcome.id = "r" + std::to_string(round_.number) + "-c" + std::to_string(number_) + "-" +
                 std::to_string(outcomes_.size());
    v1::GenerateRequest request = Ask("Once upon a time");
    request.set_request_id(outcome.id);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_token_ids(true);
    ClientCall client(*stub_);
    client.context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    outcome.begin = Clock::now();
    client.Start(request);
    for (v1::GenerateResponse message = client.Read();
         message.event_case() != v1::GenerateResponse::EVENT_NOT_SET; message = client.Read()) {
      outcome.accepted = true;
      outcome.tokens += message.delta().token_ids_size();
      outcome.finished |= message.has_finished();
      if (outcome.tokens > 0 && !streaming_.exchange(true)) streaming_.notify_all();
    }
    outcome.status = client.Finish();
    outcome.end = Clock::now();
    if (!streaming_.exchange(true)) streaming_.notify_all();  // also for a server that fails
    return outcome;
  }

  const std::unique_ptr<v1::EtaService::Stub> stub_;
  const Round round_;
  const int number_;
  std::atomic<bool> streaming_ = false;
  std::vector<Outcome> outcomes_;
  std::thread thread_;
};

// How often each request stands in the log as ended. The entry "" counts requests that were refused
// before their id was read.
std::map<std::string, int> EndsInLog(const std::string& log) {
  std::map<std::string, int> ends;
  for (const auto& line : LogLines(log, "call_end")) ++ends[line.value("request_id", "")];
  return ends;
}

// The sums over all rounds.
struct Seen {
  int drained = 0;             // calls refused because the server drains
  milliseconds last_taken{0};  // after the signal, of all answered calls
};

void Drain(const Round& round, Seen& seen) {
  ServerProcess server(ETA_BINARY_DIR "/eta-server",
                       {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0",
                        "--drain_delay", std::to_string(kDelay.count()) + "ms", "--drain_timeout",
                        std::to_string(round.timeout.count()) + "ms"});
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  HealthListener readiness(NewChannel(address), "readiness");
  EXPECT_EQ(readiness.Next(), HealthStatus::SERVING);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < kClients; ++i) {
    callers.push_back(std::make_unique<Caller>(address, round, i));
  }
  for (const auto& caller : callers) caller->AwaitFirstToken();
  std::this_thread::sleep_for(round.load);  // the signal comes somewhere in their streams

  const Clock::time_point signal = Clock::now();
  server.Signal(SIGTERM);
  EXPECT_EQ(readiness.Next(), HealthStatus::NOT_SERVING);
  std::vector<Outcome> outcomes;
  for (const auto& caller : callers) {
    for (Outcome& outcome : caller->Join()) outcomes.push_back(std::move(outcome));
  }
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 0) << exit.errors;

  Clock::time_point closed = Clock::time_point::max();  // at the latest
  for (const Outcome& outcome : outcomes) {
    if (outcome.accepted) {
      seen.last_taken = std::max(seen.last_taken,
                                 std::chrono::duration_cast<milliseconds>(outcome.begin - signal));
    } else if (ReasonOf(outcome.status) == "DRAINING") {
      EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(outcome.status).has_value()) << outcome.id;
      closed = std::min(closed, outcome.end);
      ++seen.drained;
    }
  }
  EXPECT_GE(closed - signal, kDelay) << "a call was refused before the delay was over";
  std::map<std::string, int> ends = EndsInLog(exit.errors);
  int refused = 0;
  for (const Outcome& outcome : outcomes) {
    const std::string what = outcome.id + ": " + outcome.status.error_message();
    const std::string reason = ReasonOf(outcome.status);
    const int logged = ends[outcome.id];
    EXPECT_EQ(logged, outcome.accepted ? 1 : std::min(logged, 1)) << what;
    if (!outcome.accepted && logged == 0 && !reason.empty()) ++refused;
    EXPECT_FALSE(outcome.accepted && outcome.begin > closed) << what;
    if (outcome.status.ok()) {
      EXPECT_TRUE(outcome.finished) << what;
      continue;
    }
    EXPECT_GE(outcome.end - signal, kDelay) << what;
    if (!outcome.accepted && outcome.status.error_code() == grpc::StatusCode::CANCELLED) {
      continue;  // gRPC 1.51, for a call that arrives while its server shuts down
    }
    EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::UNAVAILABLE) << what;
    if (!outcome.accepted) continue;
    EXPECT_EQ(reason, "DRAINING") << what;
    EXPECT_GE(outcome.end - signal, kDelay + round.timeout) << "cut inside the grace: " << what;
    EXPECT_EQ(MetadataOf(outcome.status, "output_tokens"), std::to_string(outcome.tokens)) << what;
  }
  EXPECT_GE(ends[""], refused) << "every refusal is logged, also one that its client never heard";
}

// Rounds alternate: streams that have time to end, and streams that have not.
Round RoundOf(int i) {
  const bool long_enough = i % 2 == 0;
  return {.number = i,
          .timeout = milliseconds(long_enough ? 60'000 : 100 + 37 * i % 200),
          .max_tokens = long_enough ? 60 : 4000,
          .load = milliseconds(61 * i % 300)};
}

TEST(DrainProcess, LosesNothing) {
  const int rounds = Rounds(6, 100);
  Seen seen;
  for (int i = 0; i < rounds && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("round " + std::to_string(i));
    Drain(RoundOf(i), seen);
  }
  EXPECT_GT(seen.drained, 0) << "nobody came late enough to be told";
  EXPECT_LT(seen.last_taken, LastTakenWithin()) << "calls are taken on and on";
  std::cout << rounds << " drains: " << seen.drained << " calls refused, the last one taken "
            << seen.last_taken.count() << " ms after the signal, " << kDelay.count()
            << " of them the delay\n";
}

}  // namespace
}  // namespace eta::testing
