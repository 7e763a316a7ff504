// The operator's calls, over a real socket.
#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "eta/v1/admin.grpc.pb.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using std::chrono::seconds;

class AdminServiceTest : public ServiceTest {
 protected:
  void SetUp() override {
    fd_ = open("/dev/null", O_WRONLY | O_CLOEXEC);
    own_log_.emplace(LogOptions{.fd = fd_});
    log_ = &*own_log_;
    Serve();
  }
  void TearDown() override {
    StopServing();
    own_log_.reset();
    close(fd_);
  }
  grpc::Status Set(v1::LogLevel level, const std::string& tenant = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    if (!tenant.empty()) context.AddMetadata(kTenantHeader, tenant);
    v1::SetLogLevelRequest request;
    request.set_level(level);
    const auto stub = v1::AdminService::NewStub(NewChannel());
    return stub->SetLogLevel(&context, request, &response_);
  }

  int fd_ = -1;
  std::optional<Log> own_log_;
  v1::SetLogLevelResponse response_;
};

TEST_F(AdminServiceTest, SetsTheLevelOfTheLog) {
  ASSERT_TRUE(Set(v1::LOG_LEVEL_DEBUG).ok());
  EXPECT_EQ(response_.previous_level(), v1::LOG_LEVEL_INFO);
  EXPECT_EQ(log_->level(), LogLevel::kDebug);
  ASSERT_TRUE(Set(v1::LOG_LEVEL_ERROR).ok());
  EXPECT_EQ(response_.previous_level(), v1::LOG_LEVEL_DEBUG);
  EXPECT_EQ(log_->level(), LogLevel::kError);
  for (const auto bad : {v1::LOG_LEVEL_UNSPECIFIED, static_cast<v1::LogLevel>(99)}) {
    EXPECT_THAT(Set(bad), FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "level"));
  }
  EXPECT_EQ(log_->level(), LogLevel::kError);
}

TEST_F(AdminServiceTest, IsForTheOperatorOnly) {
  ServerOptions options;
  options.tenant_header = kTenantHeader;
  options.admin_tenants = {"ops"};
  Serve(options);
  grpc::Status status = Set(v1::LOG_LEVEL_DEBUG, "customer");
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::PERMISSION_DENIED, "ADMIN_REQUIRED"));
  status = Set(v1::LOG_LEVEL_DEBUG);
  EXPECT_EQ(ReasonOf(status), "TENANT_REQUIRED");
  EXPECT_EQ(log_->level(), LogLevel::kInfo);
  EXPECT_TRUE(Set(v1::LOG_LEVEL_DEBUG, "ops").ok());
  EXPECT_EQ(log_->level(), LogLevel::kDebug);
}

TEST_F(AdminServiceTest, WorksWhileTheServerDrains) {
  ClientCall running(*stub_);
  running.Start(Ask("take your time"));
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  std::thread drain([this] { server_->Drain(); });
  AwaitClosed(*stub_);
  EXPECT_TRUE(Set(v1::LOG_LEVEL_DEBUG).ok());
  call->Start();
  call->Finish();
  running.ReadText();
  EXPECT_TRUE(running.Finish().ok());
  drain.join();
}

}  // namespace
}  // namespace eta::testing
