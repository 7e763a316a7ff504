// The levels of memory pressure at a real server whose control group is a folder of the test's.
#include <filesystem>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;

class MemoryLevelTest : public CalibrateTest {
 protected:
  void SetUp() override {
    store_ = std::make_unique<FaultyStore>();
    calibrate_ = [this](Engine& engine, const CalibrationJob& job,
                        const CalibrationObserver& observer, std::stop_token stop) {
      ++runs_;
      return work_(engine, job, observer, std::move(stop));
    };
    call_observers_ = {&records_};
    Work();
    folder_.Write("memory.max", "1000");
    SetUsed(0);
    ServerOptions options;
    options.memory.cgroup_root = folder_.path();
    options.memory.own_cgroup_file = folder_.Write("self", "0::/\n");
    Serve(options);
  }
  void TearDown() override {
    SetUsed(0);
    EXPECT_TRUE(AwaitPressure(v1::PRESSURE_NONE));
    ExpectGoodCall();
    ExpectGoodCalibration();
    StopServing();
  }

  // Whole or not at all: the server may be reading it.
  void SetUsed(int thousandths) {
    std::filesystem::rename(folder_.Write("next", std::to_string(thousandths)),
                            folder_.path() + "/memory.current");
  }
  void ExpectRefused(const grpc::Status& status, const std::string& pressure) {
    EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"));
    EXPECT_EQ(MetadataOf(status, "pressure"), pressure);
    EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  }

  TempFolder folder_;
  CallRecords records_;
};

// bad input: Limits and load | memory short | RESOURCE_EXHAUSTED with RetryInfo, before any
//   response header | MemoryProcessTest.ClimbsAndComesDownByTheKernelsReadings
TEST_F(MemoryLevelTest, WhileItIsShortNoWorkBegins) {
  SetUsed(949);
  EXPECT_TRUE(AwaitPressure(v1::PRESSURE_NONE));
  ExpectGoodCall();
  EXPECT_TRUE(Calibrate(Request()).status.ok());

  SetUsed(960);
  EXPECT_TRUE(AwaitPressure(v1::PRESSURE_SHORT));
  const int submissions = engine_->submissions();
  const int runs = runs_;
  ClientCall refused(*stub_);
  ExpectRefused(refused.Refusal(Ask("hello")), "short");
  EXPECT_TRUE(refused.context.GetServerInitialMetadata().empty());
  ExpectRefused(Calibrate(Request()).status, "short");
  EXPECT_EQ(engine_->submissions(), submissions);
  EXPECT_EQ(runs_, runs);

  SetUsed(940);  // not far enough below
  EXPECT_TRUE(AwaitPressure(v1::PRESSURE_SHORT));
  SetUsed(925);
  EXPECT_TRUE(AwaitPressure(v1::PRESSURE_NONE));
  ExpectGoodCall();
}

// bad input: Limits and load | memory critical | the answers that hold the most end:
//   MEMORY_PRESSURE, their tokens counted |
//   MemoryProcessTest.WhereItIsCriticalTheAnswerThatRunsEnds
TEST_F(MemoryLevelTest, TheCostliestAnswerEndsAndSaysSo) {
  ClientCall small(*stub_);
  small.Start(Ask("small"));
  const auto small_call = engine_->TakeCall();
  small_call->Start(100);
  small.Read();
  ClientCall large(*stub_);
  large.Start(Ask("large"));
  const auto large_call = engine_->TakeCall();
  large_call->Start(200);
  large_call->Say("so far");
  large.Read();
  large.Read();

  SetUsed(990);
  ASSERT_TRUE(engine_->AwaitCancel(*large_call));
  SetUsed(500);
  EXPECT_TRUE(AwaitPressure(v1::PRESSURE_NONE));
  records_.Clear();
  large_call->Fail(absl::CancelledError("cancelled"));
  EXPECT_EQ(large.ReadText(), "");
  const grpc::Status status = large.Finish();
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"));
  EXPECT_EQ(MetadataOf(status, "output_tokens"), "1");
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  EXPECT_EQ(records_.Await(1).front().reason, "MEMORY_PRESSURE");

  // The other one may have been next before the level was left; else it goes on.
  if (!small_call->ended()) small_call->Finish();
  small.ReadText();
  EXPECT_TRUE(small.Finish().ok());
  grpc::ClientContext context;
  v1::Stats stats;
  EXPECT_TRUE(v1::EtaService::NewStub(channel_)->Stats(&context, v1::StatsRequest(), &stats).ok());
  EXPECT_GE(stats.pressure().streams_ended(), 1);
}

}  // namespace
}  // namespace eta::testing
