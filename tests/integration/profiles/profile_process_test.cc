// Profiles over the lifetime of the server's process: calibrated, used, kept over restarts and
// kills, and known to every process that shares the store.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "calibration/profiles/profile_json.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/live_figures.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/profiles/profile_case.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

class ProfileProcessTest : public ::testing::Test {
 protected:
  const TinyModel model_;
  const TempFolder folder_;
  const std::string store_ = folder_.path() + "/profiles.db";
};

TEST_F(ProfileProcessTest, ACalibratedProfileIsUsedAndOutlivesAKill) {
  std::string checksum;
  {
    Replica server(model_.path(), store_);
    ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
    v1::CalibrateRequest request = SmallCalibration("legal");
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
  // The request id is kept too.
  v1::CalibrateRequest request = SmallCalibration("legal");
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
  const auto first = one.Calibrate(SmallCalibration("legal"));
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
    ASSERT_TRUE(server.Calibrate(SmallCalibration("legal")).has_value())
        << server.status.error_message();
    json = server.Export("legal");
  }
  std::filesystem::create_directories(folder_.path() + "/files/default");
  folder_.Write("files/default/legal.json", json);
  Replica server(model_.path(), "dir:" + folder_.path() + "/files");
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  EXPECT_EQ(server.Generate("legal").profile_version(), 1) << server.status.error_message();
  EXPECT_FALSE(server.Calibrate(SmallCalibration("code")).has_value());
  EXPECT_THAT(server.status, FailsWith(StatusCode::FAILED_PRECONDITION, "STORE_READ_ONLY"));
  EXPECT_EQ(server.progress, 0) << "told before any work";
  server.Import(json);
  EXPECT_EQ(ReasonOf(server.status), "STORE_READ_ONLY");
  server.Generate("");
  EXPECT_TRUE(server.status.ok());
}

TEST_F(ProfileProcessTest, AProfileOfAnotherModelIsRefusedByNameOfWhatDiffers) {
  Replica server(model_.path(), store_);
  ASSERT_TRUE(server.up());
  const v1::Stats stats = LiveStats(server);
  const std::string model = stats.server().model_fingerprint();
  const std::string tokenizer = stats.server().tokenizer_fingerprint();
  const std::string block_size = std::to_string(stats.server().kv().block_size());
  ProfileContent content = MakeContent(1, 2, 4);
  ASSERT_NE(std::to_string(content.geometry.block_size), block_size);
  const auto expect_mismatch = [&](const std::string& what, const std::string& profile,
                                   const std::string& served) {
    server.Import(*ProfileToJson({.name = "foreign", .version = 1, .content = content}));
    ASSERT_TRUE(server.status.ok()) << server.status.error_message();
    server.Generate("foreign");
    EXPECT_THAT(server.status, FailsWith(StatusCode::FAILED_PRECONDITION, "PROFILE_MISMATCH"));
    EXPECT_EQ(MetadataOf(server.status, "mismatch"), what);
    EXPECT_EQ(MetadataOf(server.status, "profile"), profile);
    EXPECT_EQ(MetadataOf(server.status, "served"), served);
    server.Generate("");
    EXPECT_TRUE(server.status.ok());
  };
  expect_mismatch("model_fingerprint", content.model_fingerprint, model);
  content.model_fingerprint = model;
  expect_mismatch("tokenizer_fingerprint", content.tokenizer_fingerprint, tokenizer);
  content.tokenizer_fingerprint = tokenizer;
  expect_mismatch("block_size", std::to_string(content.geometry.block_size), block_size);
  content.geometry.block_size = stats.server().kv().block_size();
  content.geometry.sub_block = stats.server().kv().sub_block();
  ASSERT_EQ(stats.server().kv().index(), "moment");
  content.formats.index = IndexKind::kOutlier;
  expect_mismatch("index", "outlier", "moment");
}

TEST_F(ProfileProcessTest, AnotherKindOfIndexIsRefusedAndAnotherFormatIsSaid) {
  {
    Replica server(model_.path(), store_);
    ASSERT_TRUE(server.up());
    const auto made = server.Calibrate(SmallCalibration("legal"));
    ASSERT_TRUE(made.has_value()) << server.status.error_message();
    EXPECT_EQ(made->index(), "moment");
    EXPECT_EQ(made->kv_dtype(), "float16");
    EXPECT_EQ(made->weights(), "native");
    EXPECT_EQ(server.Generate("legal").profile_differences_size(), 0);
  }
  {
    Replica server(model_.path(), store_, {"--index=outlier"});
    ASSERT_TRUE(server.up());
    server.Generate("legal");
    EXPECT_EQ(ReasonOf(server.status), "PROFILE_MISMATCH");
    EXPECT_THAT(
        server.status.error_message(),
        ::testing::HasSubstr("calibrated on an index of kind moment, and this server's is of "
                             "kind outlier"));
  }
  Replica server(model_.path(), store_, {"--kv_dtype=float32", "--weights=int8"});
  ASSERT_TRUE(server.up());
  const v1::AttentionUsed used = server.Generate("legal");
  ASSERT_TRUE(server.status.ok()) << server.status.error_message();
  ASSERT_EQ(used.profile_differences_size(), 2);
  EXPECT_EQ(used.profile_differences(0).what(), "kv_dtype");
  EXPECT_EQ(used.profile_differences(0).profile(), "float16");
  EXPECT_EQ(used.profile_differences(0).served(), "float32");
  EXPECT_EQ(used.profile_differences(1).what(), "weights");
  EXPECT_EQ(used.profile_differences(1).served(), "int8");
}

TEST_F(ProfileProcessTest, SoManyVersionsAreKeptAndTheLogNamesThoseThatWent) {
  std::string errors;
  {
    Replica server(model_.path(), store_, {"--keep_versions", "2"});
    ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
    ASSERT_TRUE(server.Calibrate(SmallCalibration("legal")).has_value())
        << server.status.error_message();
    const std::string json = server.Export("legal");
    for (int64_t version = 2; version <= 4; ++version) {
      ASSERT_EQ(server.Import(json).version(), version) << server.status.error_message();
    }
    EXPECT_THAT(server.Versions("legal"), ::testing::ElementsAre(4, 3));
    server.Generate("legal@1");
    EXPECT_EQ(ReasonOf(server.status), "PROFILE_NOT_FOUND");
    EXPECT_EQ(server.Generate("legal").profile_version(), 4) << server.status.error_message();
    server.process().Signal(SIGTERM);
    errors = server.process().AwaitExit().errors;
  }
  std::vector<std::string> removed;
  for (const nlohmann::json& line : LogLines(errors, "versions_removed")) {
    EXPECT_EQ(line["tenant"], "default");
    EXPECT_EQ(line["profile"], "legal");
    removed.push_back(line["profile_versions"]);
  }
  EXPECT_THAT(removed, ::testing::ElementsAre("1", "2"));
}

TEST_F(ProfileProcessTest, ATargetThatCannotBeMetSaysWhatCanAndStoresNothing) {
  Replica server(model_.path(), store_);
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  v1::CalibrateRequest request = SmallCalibration("legal");
  request.mutable_target()->set_union_density(0.01);
  EXPECT_FALSE(server.Calibrate(request).has_value());
  EXPECT_THAT(server.status, FailsWith(StatusCode::FAILED_PRECONDITION, "TARGET_UNREACHABLE"));
  EXPECT_GT(std::stod(MetadataOf(server.status, "nearest")), 0.01);
  server.Get("legal");
  EXPECT_EQ(ReasonOf(server.status), "PROFILE_NOT_FOUND");
  server.Generate("");
  EXPECT_TRUE(server.status.ok()) << "a good call afterwards: " << server.status.error_message();
}

TEST_F(ProfileProcessTest, ASignalEndsACalibrationAndNothingIsStored) {
  {
    Replica server(model_.path(), store_);
    ASSERT_TRUE(server.up());
    const v1::CalibrateRequest request = LongCalibration("legal");
    grpc::ClientContext context;
    const auto reader = server.stub->Calibrate(&context, request);
    v1::CalibrateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_TRUE(message.has_progress());
    server.process().Signal(SIGTERM);
    while (reader->Read(&message)) EXPECT_FALSE(message.has_profile());
    EXPECT_THAT(reader->Finish(), FailsWith(StatusCode::UNAVAILABLE, "DRAINING"));
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
  EXPECT_THAT(errors(folder_.path() + "/nowhere/deeper/profiles.db"), HasSubstr("--profile_store"));
  EXPECT_THAT(errors("dir:" + folder_.path() + "/nowhere"), HasSubstr("--profile_store"));
  EXPECT_THAT(errors("mysql://host/db"), HasSubstr("--profile_store"));
  EXPECT_THAT(errors(folder_.Write("text", std::string(8192, 'x'))), HasSubstr("--profile_store"));
  EXPECT_EQ(ReadFile(folder_.path() + "/text"), std::string(8192, 'x')) << "left as it is";
  std::filesystem::create_directories(folder_.path() + "/files/default");
  const ProfileContent content = MakeContent(1, 2, 4);
  folder_.Write("files/default/legal.json",
                *ProfileToJson({.name = "legal", .version = 1, .content = content}));
  folder_.Write("files/default/aliases.json", "{\"legal\": {\"stable\": [1, 1]}}");
  EXPECT_THAT(errors("dir:" + folder_.path() + "/files"),
              HasSubstr("legal.stable: names two versions for one model"));
  EXPECT_THAT(errors(store_, {"--keep_versions=-1"}), HasSubstr("--keep_versions"));
  EXPECT_THAT(errors("", {"--default_profile", "../x"}), HasSubstr("--default_profile"));
  EXPECT_THAT(errors("", {"--tenant_header", "Upper"}), HasSubstr("--tenant_header"));
  EXPECT_THAT(errors("", {"--max_calibrations", "0"}), HasSubstr("--max_calibrations"));
}

}  // namespace
}  // namespace eta::testing
