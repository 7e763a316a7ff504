// Texts that are hard for a tokenizer, sent to the shipped server. All of them exceed the context,
// which is known once they are tokenized.
#include <time.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/engine/tokenizer_json.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/process/server_process.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kBytes = 640 << 10;  // under --max_prompt_bytes
constexpr int kParts = 32;
constexpr double kMostTimes = 8;
constexpr double kMostSeconds = 0.05 * kBytes / (64 << 10);
// Bytes of a text per token of the context. No token of these texts has more than 16 bytes, so they
// exceed the context. The longest piece has 48 bytes; only a text of more bytes per token could be
// refused before it is tokenized.
constexpr size_t kBytesPerToken = 32;

// A server whose context is too short for texts of `bytes` bytes.
class ShortServer {
 public:
  ShortServer(const TinyModel& model, size_t bytes)
      : process_(ETA_BINARY_DIR "/eta-server",
                 {"--model", model.path(), "--listen", "127.0.0.1:0", "--max_context",
                  std::to_string(bytes / kBytesPerToken), "--kv_pool_bytes", "32MiB"}),
        address_(process_.AwaitAddress()),
        stub_(v1::EtaService::NewStub(
            grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()))) {}

  bool up() const { return !address_.empty(); }
  // The server's processor time, in seconds, for refusing `text` `times` times. It leaves out other
  // work of the machine.
  double CostOf(const std::string& text, int times) const {
    const double before = ProcessorTime();
    for (int i = 0; i < times; ++i) {
      ClientCall call(*stub_);
      const grpc::Status status = call.Refusal(AskBriefly(text));
      EXPECT_EQ(ReasonOf(status), "CONTEXT_TOO_LONG") << status.error_message();
      EXPECT_THAT(status.error_message(), Not(HasSubstr("at least"))) << "it was made tokens";
    }
    return ProcessorTime() - before;
  }
  void ExpectGoodAndStop() {
    ClientCall good(*stub_);
    good.Start(AskBriefly("The capital of France is"));
    good.ReadText();
    EXPECT_TRUE(good.Finish().ok()) << "a good call afterwards";
    process_.Signal(SIGTERM);
    EXPECT_EQ(process_.AwaitExit().code, 0);
  }

 private:
  static v1::GenerateRequest AskBriefly(const std::string& text) {
    v1::GenerateRequest request = Ask(text);
    request.mutable_stopping()->set_max_tokens(4);
    return request;
  }
  double ProcessorTime() const {
    clockid_t clock;
    timespec used{};
    EXPECT_EQ(clock_getcpuclockid(process_.pid(), &clock), 0);
    EXPECT_EQ(clock_gettime(clock, &used), 0);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  }

  ServerProcess process_;
  const std::string address_;
  const std::unique_ptr<v1::EtaService::Stub> stub_;
};

TEST(HardPromptTest, IsTokenizedInTimeLinearInItsBytes) {
  const TinyModel model({.max_context = kBytes / kBytesPerToken});
  ShortServer for_whole(model, kBytes), for_parts(model, kBytes / kParts);
  ASSERT_TRUE(for_whole.up() && for_parts.up());
  const std::vector<std::pair<const char*, std::string>> units = {
      {"one character", "a"},         {"spaces", " "},
      {"combining marks", "\u0301"},  {"two characters", "ab"},
      {"control characters", "\x01"}, {"no character of the vocabulary", "\U0001d11e"}};
  for (const auto& [what, unit] : units) {
    std::string whole;
    while (whole.size() < kBytes) whole += unit;
    const std::string part = whole.substr(0, kBytes / kParts);
    for_parts.CostOf(part, 1);  // warm-up
    const double in_parts = for_parts.CostOf(part, kParts);
    const double at_once = for_whole.CostOf(whole, 1);
    std::printf("640 KiB, %s: %.0f ms at once, %.0f ms in %d parts\n", what, at_once * 1e3,
                in_parts * 1e3, kParts);
    // A cost that grows with the square of the bytes would be 32 times as large.
    EXPECT_LE(at_once, kMostTimes * in_parts) << what;
    if (LongRun() && !kAddressSanitizer) {
      EXPECT_LE(at_once, kMostSeconds) << what;
    }
  }
  for_whole.ExpectGoodAndStop();
  for_parts.ExpectGoodAndStop();
}

TEST(HardPattern, CostsItsOwnCallAlone) {
  TokenizerJson file({"a", "b", "ab"}, {{"a", "b"}});
  file.root["pre_tokenizer"] = {{"type", "Split"},
                                {"pattern", {{"Regex", "(a+)+b"}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
  const TinyModel model({.tokenizer_json = file.Dump()});
  Replica server(model.path(), "");
  ASSERT_TRUE(server.up());
  const auto ask = [&](const std::string& text) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_stopping()->set_max_tokens(1);
    ClientCall call(*server.stub);
    call.Start(request);
    call.ReadText();
    return call.Finish();
  };
  const grpc::Status bomb = ask(std::string(80, 'a') + "-b");
  EXPECT_EQ(bomb.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(bomb.error_message(), HasSubstr("a pattern of the model's tokenizer"));
  EXPECT_TRUE(ask("ab").ok());
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().AwaitExit().code, 0);
}

}  // namespace
}  // namespace eta::testing
