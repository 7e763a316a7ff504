// Profiles over the life of the server's process: calibrated, used, kept over restarts and kills,
// and known to every process that shares the store.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include "calibration/profile_json.h"
#include "eta/v1/profiles.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/client_call.h"
#include "tests/testing/error_details.h"
#include "tests/testing/profile_case.h"
#include "tests/testing/server_process.h"
#include "tests/testing/tiny_model.h"
#include "tests/unit/temp_folder.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

// One process of the server, and its clients.
class Replica {
 public:
  Replica(const std::string& model, const std::string& store,
          const std::vector<std::string>& more = {})
      : process_(ETA_BINARY_DIR "/eta-server", Flags(model, store, more)) {
    address_ = process_.AwaitAddress();
    if (address_.empty()) return;
    channel_ = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
    stub = v1::EtaService::NewStub(channel_);
    profiles = v1::ProfileService::NewStub(channel_);
  }
  bool up() const { return !address_.empty(); }
  ServerProcess& process() { return process_; }

  // The stored profile, or the status in `status`.
  std::optional<v1::Profile> Calibrate(const v1::CalibrateRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub->Calibrate(&context, request);
    std::optional<v1::Profile> profile;
    v1::CalibrateResponse message;
    progress = 0;
    while (reader->Read(&message)) {
      if (message.has_progress()) ++progress;
      if (message.has_profile()) profile = message.profile();
    }
    status = reader->Finish();
    return profile;
  }
  // What the first message of a short answer says, or the status in `status`.
  v1::AttentionUsed Generate(const std::string& profile) {
    v1::GenerateRequest request = Ask("The quick brown fox");
    request.mutable_stopping()->set_max_tokens(4);
    request.mutable_stopping()->set_ignore_eos(true);
    if (!profile.empty()) request.mutable_attention()->set_profile(profile);
    ClientCall call(*stub);
    call.Start(request);
    const v1::AttentionUsed used = call.Read().started().attention();
    call.ReadText();
    status = call.Finish();
    return used;
  }
  v1::Profile Import(const std::string& json) {
    grpc::ClientContext context;
    v1::ImportProfileRequest request;
    request.set_json(json);
    v1::Profile profile;
    status = profiles->ImportProfile(&context, request, &profile);
    return profile;
  }
  v1::Profile Get(const std::string& reference) {
    grpc::ClientContext context;
    v1::GetProfileRequest request;
    request.set_profile(reference);
    v1::Profile profile;
    status = profiles->GetProfile(&context, request, &profile);
    return profile;
  }
  std::string Export(const std::string& reference) {
    grpc::ClientContext context;
    v1::ExportProfileRequest request;
    request.set_profile(reference);
    v1::ExportProfileResponse response;
    status = profiles->ExportProfile(&context, request, &response);
    return response.json();
  }

  std::unique_ptr<v1::EtaService::Stub> stub;
  std::unique_ptr<v1::ProfileService::Stub> profiles;
  grpc::Status status;  // of the last call
  int progress = 0;     // messages of the last calibration

 private:
  static std::vector<std::string> Flags(const std::string& model, const std::string& store,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--model",         model,  "--listen", "127.0.0.1:0",
                                      "--kv_pool_bytes", "16MiB"};
    if (!store.empty()) {
      flags.push_back("--profile_store");
      flags.push_back(store);
    }
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  ServerProcess process_;
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
};

class ProfileProcessTest : public ::testing::Test {
 protected:
  static v1::CalibrateRequest Request(const std::string& name) {
    v1::CalibrateRequest request;
    request.set_name(name);
    for (int i = 0; i < 4; ++i) {
      auto* ids = request.add_samples()->mutable_token_ids();
      for (int j = 0; j < 256; ++j) ids->add_ids(10 + (i * 977 + j * j * 31 + j) % 8000);
    }
    request.mutable_target()->mutable_match_dynamic();
    request.set_sequence_tokens(256);
    return request;
  }

  const TinyModel model_;
  const TempFolder folder_;
  const std::string store_ = folder_.path() + "/profiles.db";
};

TEST_F(ProfileProcessTest, ACalibratedProfileIsUsedAndOutlivesAKill) {
  std::string checksum;
  {
    Replica server(model_.path(), store_);
    ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
    v1::CalibrateRequest request = Request("legal");
    request.set_request_id("once");
    const auto profile = server.Calibrate(request);
    ASSERT_TRUE(profile.has_value()) << server.status.error_message();
    EXPECT_GT(server.progress, 0);
    checksum = profile->checksum();
    server.process().Signal(SIGKILL);
    server.process().AwaitExit();
  }
  Replica server(model_.path(), store_);
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  EXPECT_EQ(server.Get("legal").checksum(), checksum);
  const v1::AttentionUsed used = server.Generate("legal");
  EXPECT_TRUE(server.status.ok()) << server.status.error_message();
  EXPECT_EQ(used.profile(), "legal");
  EXPECT_EQ(used.profile_version(), 1);
  // The request id is remembered too.
  v1::CalibrateRequest request = Request("legal");
  request.set_request_id("once");
  const auto again = server.Calibrate(request);
  ASSERT_TRUE(again.has_value()) << server.status.error_message();
  EXPECT_EQ(again->checksum(), checksum);
  EXPECT_EQ(server.progress, 0);
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().AwaitExit().code, 0);
}

TEST_F(ProfileProcessTest, ANewVersionReachesTheOtherProcessWithinASecond) {
  Replica one(model_.path(), store_);
  Replica two(model_.path(), store_);
  ASSERT_TRUE(one.up() && two.up());
  const auto first = one.Calibrate(Request("legal"));
  ASSERT_TRUE(first.has_value()) << one.status.error_message();
  const std::string json = one.Export("legal");
  EXPECT_EQ(two.Generate("legal").profile_version(), 1) << two.status.error_message();
  for (int64_t version = 2; version <= 4; ++version) {
    ASSERT_EQ(one.Import(json).version(), version) << one.status.error_message();
    EXPECT_EQ(one.Generate("legal").profile_version(), version);
    const auto limit = steady_clock::now() + seconds(1);
    int64_t seen = 0;
    while (seen != version && steady_clock::now() < limit) {
      seen = two.Generate("legal").profile_version();
      ASSERT_TRUE(two.status.ok()) << two.status.error_message();
    }
    EXPECT_EQ(seen, version);
  }
}

TEST_F(ProfileProcessTest, AFolderOfFilesIsReadAndNotWritten) {
  std::string json;
  {
    Replica server(model_.path(), store_);
    ASSERT_TRUE(server.up());
    ASSERT_TRUE(server.Calibrate(Request("legal")).has_value()) << server.status.error_message();
    json = server.Export("legal");
  }
  std::filesystem::create_directories(folder_.path() + "/files/default");
  folder_.Write("files/default/legal.json", json);
  Replica server(model_.path(), "dir:" + folder_.path() + "/files");
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  EXPECT_EQ(server.Generate("legal").profile_version(), 1) << server.status.error_message();
  EXPECT_FALSE(server.Calibrate(Request("code")).has_value());
  EXPECT_EQ(server.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(server.status), "STORE_READ_ONLY");
  EXPECT_EQ(server.progress, 0) << "told before any work";
  server.Import(json);
  EXPECT_EQ(ReasonOf(server.status), "STORE_READ_ONLY");
  server.Generate("");
  EXPECT_TRUE(server.status.ok());
}

TEST_F(ProfileProcessTest, AProfileOfAnotherModelIsRefusedByNameOfWhatDiffers) {
  Replica server(model_.path(), store_);
  ASSERT_TRUE(server.up());
  const auto json =
      ProfileToJson({.name = "foreign", .version = 1, .content = MakeContent(1, 2, 4)});
  server.Import(*json);
  ASSERT_TRUE(server.status.ok()) << server.status.error_message();
  server.Generate("foreign");
  EXPECT_EQ(server.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(server.status), "PROFILE_MISMATCH");
  server.Generate("");
  EXPECT_TRUE(server.status.ok());
}

TEST_F(ProfileProcessTest, ASignalEndsACalibrationAndNothingIsStored) {
  {
    Replica server(model_.path(), store_);
    ASSERT_TRUE(server.up());
    v1::CalibrateRequest request = Request("legal");
    for (int i = 0; i < 200; ++i) *request.add_samples() = request.samples(i % 4);
    grpc::ClientContext context;
    const auto reader = server.stub->Calibrate(&context, request);
    v1::CalibrateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_TRUE(message.has_progress());
    server.process().Signal(SIGTERM);
    while (reader->Read(&message)) EXPECT_FALSE(message.has_profile());
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(status), "DRAINING");
    EXPECT_EQ(server.process().AwaitExit().code, 0);
  }
  Replica server(model_.path(), store_);
  ASSERT_TRUE(server.up());
  server.Get("legal");
  EXPECT_EQ(ReasonOf(server.status), "PROFILE_NOT_FOUND");
}

TEST_F(ProfileProcessTest, AStoreThatCannotBeOpenedIsABadStart) {
  const auto errors = [this](const std::string& store, const std::vector<std::string>& more = {}) {
    Replica server(model_.path(), store, more);
    EXPECT_FALSE(server.up());
    const ServerProcess::Exit exit = server.process().AwaitExit();
    EXPECT_EQ(exit.code, 2) << exit.errors;
    return exit.errors;
  };
  EXPECT_THAT(errors(folder_.path() + "/nowhere/profiles.db"), HasSubstr("--profile_store"));
  EXPECT_THAT(errors("dir:" + folder_.path() + "/nowhere"), HasSubstr("--profile_store"));
  EXPECT_THAT(errors("mysql://host/db"), HasSubstr("--profile_store"));
  EXPECT_THAT(errors(folder_.Write("text", std::string(8192, 'x'))), HasSubstr("--profile_store"));
  EXPECT_EQ(ReadFile(folder_.path() + "/text"), std::string(8192, 'x')) << "left as it is";
  EXPECT_THAT(errors("", {"--default_profile", "../x"}), HasSubstr("--default_profile"));
  EXPECT_THAT(errors("", {"--tenant_header", "Upper"}), HasSubstr("--tenant_header"));
  EXPECT_THAT(errors("", {"--max_calibrations", "0"}), HasSubstr("--max_calibrations"));
}

}  // namespace
}  // namespace eta::testing
