// Formats whose compiling takes time, at the built server: nobody else waits with them. A failpoint
// holds whoever waits for the compiler.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/process/failpoint_server.h"

namespace eta::testing {
namespace {

class BusyFormats : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors; }

  static v1::GenerateRequest Short(bool in_json) {
    v1::GenerateRequest request = Ask("Once upon a time");
    request.mutable_stopping()->set_max_tokens(2);
    if (in_json) request.mutable_format()->mutable_json_object();
    return request;
  }
  void AwaitHeld() {
    while (!server_.Struck("generate.compile")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const TinyModel model_;
  FailpointServer server_{model_.path(), ""};
};

TEST_F(BusyFormats, FreeTextHealthAndStatsDoNotWaitWithThem) {
  server_.Arm("generate.compile=pause");
  std::vector<std::unique_ptr<ClientCall>> held;
  for (int i = 0; i < 20; ++i) {
    held.push_back(std::make_unique<ClientCall>(*server_->stub));
    held.back()->Start(Short(/*in_json=*/true));
  }
  AwaitHeld();
  ClientCall free_text(*server_->stub);
  free_text.Start(Short(/*in_json=*/false));
  free_text.ReadText();
  EXPECT_TRUE(free_text.Finish().ok());
  for (const char* service : {"liveness", "readiness"}) {
    EXPECT_EQ(CheckHealth(OwnConnection(server_->address()), service), HealthStatus::SERVING);
  }
  grpc::ClientContext context;
  v1::Stats stats;
  EXPECT_TRUE(server_->stub->Stats(&context, {}, &stats).ok());
  for (const auto& call : held) call->context.TryCancel();
  for (const auto& call : held) {
    EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  server_.Disarm();
}

TEST_F(BusyFormats, NoMemoryForAFormatRefusesOneCall) {
  server_.Arm("generate.compile=bad_alloc*1");
  ClientCall call(*server_->stub);
  EXPECT_THAT(call.Refusal(Short(/*in_json=*/true)),
              FailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"));
  ClientCall free_text(*server_->stub);
  free_text.Start(Short(/*in_json=*/false));
  free_text.ReadText();
  EXPECT_TRUE(free_text.Finish().ok());
}

}  // namespace
}  // namespace eta::testing
