// Row 82 of the table of bad inputs: what is hard for a tokenizer, against the server as it is
// shipped. All of it is over the context, which is known once it has been tokenized.
#include <time.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/testing/client_call.h"
#include "tests/testing/error_details.h"
#include "tests/testing/server_process.h"
#include "tests/testing/tiny_model.h"

namespace eta::testing {
namespace {

constexpr size_t kBytes = 640 << 10;  // under --max_prompt_bytes
constexpr int kParts = 32;
constexpr double kMostTimes = 8;

class HardPromptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string address = server_.AwaitAddress();
    ASSERT_NE(address, "") << server_.AwaitExit().errors;
    stub_ =
        v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    ClientCall good(*stub_);
    good.Start(AskBriefly("The capital of France is"));
    good.ReadText();
    EXPECT_TRUE(good.Finish().ok()) << "a good call afterwards";
    server_.Signal(SIGTERM);
    EXPECT_EQ(server_.AwaitExit().code, 0);
  }

  static v1::GenerateRequest AskBriefly(const std::string& text) {
    v1::GenerateRequest request = Ask(text);
    request.mutable_stopping()->set_max_tokens(4);
    return request;
  }
  // The server's processor time, in seconds: what else the machine does is not in it.
  double ProcessorTime() const {
    clockid_t clock;
    timespec used{};
    EXPECT_EQ(clock_getcpuclockid(server_.pid(), &clock), 0);
    EXPECT_EQ(clock_gettime(clock, &used), 0);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  }
  // What it takes to refuse `text` so many times.
  double CostOf(const std::string& text, int times) {
    const double before = ProcessorTime();
    for (int i = 0; i < times; ++i) {
      ClientCall call(*stub_);
      const grpc::Status status = call.Refusal(AskBriefly(text));
      EXPECT_EQ(ReasonOf(status), "CONTEXT_TOO_LONG") << status.error_message();
    }
    return ProcessorTime() - before;
  }

  const TinyModel model_;
  ServerProcess server_{ETA_BINARY_DIR "/eta-server",
                        {"--model", model_.path(), "--listen", "127.0.0.1:0", "--max_context", "64",
                         "--kv_pool_bytes", "16MiB"}};
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

TEST_F(HardPromptTest, IsTokenizedInTimeLinearInItsBytes) {
  const std::vector<std::pair<const char*, std::string>> units = {
      {"one character", "a"},         {"spaces", " "},
      {"combining marks", "\u0301"},  {"two characters", "ab"},
      {"control characters", "\x01"}, {"no character of the vocabulary", "\U0001d11e"}};
  for (const auto& [what, unit] : units) {
    std::string whole;
    while (whole.size() < kBytes) whole += unit;
    const std::string part = whole.substr(0, kBytes / kParts);
    CostOf(part, 1);  // warm
    const double in_parts = CostOf(part, kParts);
    const double at_once = CostOf(whole, 1);
    std::printf("640 KiB, %s: %.0f ms at once, %.0f ms in %d parts\n", what, at_once * 1e3,
                in_parts * 1e3, kParts);
    // As the square of its bytes it would grow to 32 times as much.
    EXPECT_LE(at_once, kMostTimes * in_parts) << what;
  }
}

}  // namespace
}  // namespace eta::testing
