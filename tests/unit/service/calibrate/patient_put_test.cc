// A profile that was made is stored however long the store is away, but not past a stop.
#include "service/calibrate/patient_put.h"

#include <future>
#include <string>

#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/profiles/faulty_store.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class PatientPutTest : public ::testing::Test {
 protected:
  static PutProfile Made() {
    PutProfile put = MakePut("legal", 1);
    put.request_id = "once";
    put.payload_digest = std::string(64, 'a');
    return put;
  }
  std::future<absl::StatusOr<ProfilePtr>> Put(milliseconds wait) {
    return std::async(std::launch::async, [this, wait] {
      return PutPatiently(store_, kAcme, Made(), stop_.get_token(),
                          {.first_wait = wait, .longest_wait = 4 * wait});
    });
  }
  bool AwaitTries(int count) {
    return Eventually([&] { return store_.calls("acme") >= count; });
  }
  static std::string ReasonOf(const absl::Status& status) { return GetErrorDetail(status).reason; }

  FaultyStore store_;
  std::stop_source stop_;
};

TEST_F(PatientPutTest, TriesUntilTheStoreIsBack) {
  for (const absl::Status& blip :
       {StoreUnavailable("it is down"), StoreBusy(), OutcomeUnknown(),
        MakeError(absl::StatusCode::kAborted, "conflict", {.reason = "STORE_CONFLICT"})}) {
    const int before = store_.calls("acme");
    store_.Fail(blip);
    auto stored = Put(milliseconds(1));
    EXPECT_TRUE(AwaitTries(before + 4));
    store_.Fail(absl::OkStatus());
    const auto record = stored.get().value();
    EXPECT_EQ(record->version, 1) << "the same request is the same version";
  }
}

TEST_F(PatientPutTest, AStopEndsTheWaitAtOnce) {
  store_.Fail(StoreUnavailable("it is down"));
  auto stored = Put(hours(1));
  EXPECT_TRUE(AwaitTries(1));
  stop_.request_stop();
  EXPECT_EQ(ReasonOf(stored.get().status()), "STORE_UNAVAILABLE");
  EXPECT_EQ(store_.calls("acme"), 1);
}

TEST_F(PatientPutTest, WhatMayHaveBeenStoredIsToldSo) {
  store_.Fail(OutcomeUnknown());
  auto stored = Put(milliseconds(1));
  EXPECT_TRUE(AwaitTries(1));
  store_.Fail(StoreUnavailable("it is down"));
  EXPECT_TRUE(AwaitTries(4));
  stop_.request_stop();
  EXPECT_EQ(ReasonOf(stored.get().status()), "OUTCOME_UNKNOWN");
}

TEST_F(PatientPutTest, WhatDoesNotPassIsToldAtOnce) {
  int tries = 0;
  for (const absl::Status& status :
       {StoreFull(), StoreFailed(), StoreIoError(), StoreReadOnly(), VersionMismatch(3),
        ProfileExists(), OverProfileQuota("profile versions", 1)}) {
    store_.Fail(status);
    EXPECT_EQ(Put(hours(1)).get().status(), status);
    EXPECT_EQ(store_.calls("acme"), ++tries) << status;
  }
}

}  // namespace
}  // namespace eta::testing
