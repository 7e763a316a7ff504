// What the audit log keeps when more comes than its reader takes.
#include "service/calls/records/audit_log.h"

#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "service/wire/store_status.h"
#include "tests/testing/process/log_pipe.h"

namespace eta {
namespace {

CallRecord Ended(std::string_view method, const absl::Status& status, std::string profile) {
  CallRecord record;
  record.method = method;
  record.tenant = "acme";
  record.status = status;
  record.profile = std::move(profile);
  return record;
}

TEST(AuditLog, NoFloodPushesOutWhatMayHaveChangedAProfile) {
  const std::vector<absl::Status> ends = {
      absl::OkStatus(), absl::CancelledError("the client left"),
      absl::DeadlineExceededError("too late"), absl::UnknownError("a COMMIT without an answer"),
      MakeError(absl::StatusCode::kResourceExhausted, "the client read too slowly",
                {.reason = "SLOW_CONSUMER"})};
  testing::LogPipe pipe;
  std::optional<Log> log;
  log.emplace(LogOptions{
      .fd = pipe.writer(), .max_waiting = 100, .last_wait = std::chrono::milliseconds(60'000)});
  AuditLog audit(*log);
  const auto denied = Ended("Generate", absl::UnauthenticatedError("who?"), "");
  const auto refused = Ended("Calibrate",
                             MakeError(absl::StatusCode::kResourceExhausted, "too many",
                                       {.reason = "TENANT_CALIBRATIONS"}),
                             "refused");
  // Before it is known who calls.
  auto late = Ended("DeleteProfile",
                    MakeError(absl::StatusCode::kDeadlineExceeded, "the deadline passed",
                              {.reason = "DEADLINE_PASSED"}),
                    "refused");
  late.tenant.clear();
  auto draining = Ended("ImportProfile", ServerDraining(), "refused");
  draining.tenant.clear();
  for (int i = 0; i < 20'000; ++i) {
    audit.OnCallEnd(denied);
    audit.OnCallEnd(refused);
    audit.OnCallEnd(late);
    audit.OnCallEnd(draining);
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    audit.OnCallEnd(Ended("Calibrate", ends[i], "profile-" + std::to_string(i)));
  }

  const std::vector<std::string> lines = pipe.ReadRest(log);
  std::vector<std::string> changed;
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    if (json["event"] != "profile_change" || json["profile"] == "refused") continue;
    changed.push_back(json["profile"]);
  }
  ASSERT_EQ(changed.size(), ends.size()) << "all of them, although most lines were lost";
  EXPECT_LT(lines.size(), 20'000u);
}

TEST(AuditLog, ACalibrationThatEndsAloneLeavesATrail) {
  testing::LogPipe pipe;
  std::optional<Log> log;
  log.emplace(LogOptions{.fd = pipe.writer()});
  AuditLog audit(*log);
  CallRecord stored = Ended("Calibrate", absl::OkStatus(), "legal");
  stored.profile_version = 4;
  audit.OnCalibrationEnd(stored, /*alone=*/false);  // its calls' ends tell of it
  audit.OnCalibrationEnd(stored, /*alone=*/true);
  const std::vector<std::string> lines = pipe.ReadRest(log);
  ASSERT_EQ(lines.size(), 1u);
  const auto json = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(json["event"], "profile_change");
  EXPECT_EQ(json["tenant"], "acme");
  EXPECT_EQ(json["profile"], "legal");
  EXPECT_EQ(json["profile_version"], 4);
}

}  // namespace
}  // namespace eta
