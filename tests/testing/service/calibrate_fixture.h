// The service with a store, and calibrations that do what the test says.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/base/error_details.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {

// The result of a call.
struct CalibrateOutcome {
  std::vector<v1::CalibrationProgress> progress;
  std::optional<v1::Profile> profile;
  grpc::Status status;
  std::string pushback;
};

class CalibrateTest : public ServiceTest {
 protected:
  void SetUp() override {
    store_ = std::make_unique<FaultyStore>();
    calibrate_ = [this](Engine& engine, const CalibrationJob& job,
                        const CalibrationObserver& observer, std::stop_token stop) {
      const auto work = work_;  // a copy: a test may set another one while this runs
      ++runs_;
      return work(engine, job, observer, std::move(stop));
    };
    Work();
    Serve();
  }
  void TearDown() override {
    store_->Fail(absl::OkStatus());
    ExpectGoodCalibration();
    StopServing();
  }

  absl::StatusOr<CalibrationResult> Made(const CalibrationJob& job) {
    CalibrationResult result;
    result.content = FittingContent(static_cast<uint32_t>(runs_));
    result.content.labels = job.labels;
    result.content.target = job.target;
    return result;
  }

  static v1::CalibrateRequest Request(const std::string& name = "legal") {
    v1::CalibrateRequest request;
    request.set_name(name);
    request.add_samples()->set_text("Whereas the party of the first part");
    request.mutable_target()->set_union_density(0.35);
    return request;
  }

  CalibrateOutcome Calibrate(const v1::CalibrateRequest& request, const std::string& tenant = "") {
    grpc::ClientContext context;
    return Calibrate(request, context, tenant);
  }
  CalibrateOutcome Calibrate(const v1::CalibrateRequest& request, grpc::ClientContext& context,
                             const std::string& tenant = "") {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!tenant.empty()) context.AddMetadata(kTenantHeader, tenant);
    const auto reader = stub_->Calibrate(&context, request);
    CalibrateOutcome outcome;
    v1::CalibrateResponse message;
    while (reader->Read(&message)) {
      if (message.has_progress()) outcome.progress.push_back(message.progress());
      if (message.has_profile()) outcome.profile = message.profile();
    }
    outcome.status = reader->Finish();
    const auto& trailers = context.GetServerTrailingMetadata();
    if (const auto found = trailers.find("grpc-retry-pushback-ms"); found != trailers.end()) {
      outcome.pushback = std::string(found->second.data(), found->second.size());
    }
    return outcome;
  }
  std::future<CalibrateOutcome> CalibrateLater(const v1::CalibrateRequest& request,
                                               const std::string& tenant = "") {
    return std::async(std::launch::async,
                      [this, request, tenant] { return Calibrate(request, tenant); });
  }
  void ExpectRefusal(const v1::CalibrateRequest& request, grpc::StatusCode code,
                     const std::string& reason) {
    const int runs = runs_;
    const CalibrateOutcome outcome = Calibrate(request);
    EXPECT_THAT(outcome.status, FailsWith(code, reason));
    EXPECT_FALSE(outcome.profile.has_value());
    EXPECT_EQ(runs_, runs) << "no work is done";
  }
  void ExpectBadField(const std::function<void(v1::CalibrateRequest&)>& change,
                      const std::string& field) {
    v1::CalibrateRequest request = Request();
    change(request);
    const int runs = runs_;
    const CalibrateOutcome outcome = Calibrate(request);
    EXPECT_THAT(outcome.status, FailsAt(grpc::StatusCode::INVALID_ARGUMENT, field)) << field;
    EXPECT_EQ(runs_, runs) << field;
  }
  void ExpectGoodCalibration() {
    Work();
    const CalibrateOutcome outcome = Calibrate(Request("good-afterwards"), "anybody");
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(outcome.profile.has_value());
  }
  // The newest version; 0 if there is none.
  int64_t StoredVersion(const std::string& name, const std::string& tenant = "default") {
    const auto record = store_->others().Get(TenantOf(tenant), name, Newest());
    return record.ok() ? (*record)->version : 0;
  }

  // A calibration that runs until Go or until it is stopped.
  class Gate {
   public:
    void Go() { go_.set_value(); }
    void AwaitStart() { started_.get_future().wait(); }
    bool Pass(const std::stop_token& stop) {
      started_.set_value();
      while (opened_.wait_for(std::chrono::milliseconds(2)) != std::future_status::ready) {
        if (stop.stop_requested()) return false;
      }
      return true;
    }

   private:
    std::promise<void> started_;
    std::promise<void> go_;
    std::future<void> opened_ = go_.get_future();
  };
  // Makes calibrations succeed, at once or behind a gate.
  void Work() {
    work_ = [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                   const std::stop_token&) { return Made(job); };
  }
  void WorkBehind(Gate& gate) {
    work_ = [this, &gate](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                          const std::stop_token& stop) -> absl::StatusOr<CalibrationResult> {
      if (!gate.Pass(stop)) return absl::CancelledError("stopped");
      return Made(job);
    };
  }

  std::function<absl::StatusOr<CalibrationResult>(Engine&, const CalibrationJob&,
                                                  const CalibrationObserver&, std::stop_token)>
      work_;
  std::atomic<int> runs_ = 0;
};

}  // namespace eta::testing
