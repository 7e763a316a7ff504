// When a cancel counts as the deadline's, and what makes two requests the same.
#include "eta/v1/calibrate.pb.h"
#include "gtest/gtest.h"
#include "service/calls/admission.h"
#include "service/wire/payload_digest.h"

namespace eta {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

const Clock::time_point kDeadline = Clock::time_point() + hours(1);

TEST(CancelledForDeadline, OnlyIfTheDeadlineHadPassedWhenTheCancelCame) {
  EXPECT_TRUE(HadPassed(kDeadline, kDeadline));
  EXPECT_TRUE(HadPassed(kDeadline, kDeadline + minutes(5)));
  EXPECT_TRUE(HadPassed(kDeadline, kDeadline - milliseconds(20))) << "by the client's clock it had";
  EXPECT_FALSE(HadPassed(kDeadline, kDeadline - milliseconds(21)));
  EXPECT_FALSE(HadPassed(kDeadline, kDeadline - minutes(59))) << "however long the deadline was";
}

TEST(CancelledForDeadline, NotWithoutADeadline) {
  EXPECT_FALSE(HadPassed(Clock::time_point::max(), kDeadline));
}

std::string Digest(const v1::CalibrateRequest& request, const std::string& method = "Calibrate") {
  const auto digest = PayloadDigest(method, request);
  EXPECT_TRUE(digest.ok());
  return digest.value_or("");
}

v1::CalibrateRequest Request() {
  v1::CalibrateRequest request;
  request.set_name("legal");
  for (int i = 0; i < 16; ++i) (*request.mutable_labels())["key" + std::to_string(i)] = "value";
  request.add_samples()->set_text("text");
  return request;
}

TEST(PayloadDigest, IsTheSameForTheSameRequestHoweverItCameToBe) {
  v1::CalibrateRequest other_order;
  other_order.add_samples()->set_text("text");
  for (int i = 15; i >= 0; --i) {
    (*other_order.mutable_labels())["key" + std::to_string(i)] = "value";
  }
  other_order.set_name("legal");
  EXPECT_EQ(Digest(Request()), Digest(other_order));
  EXPECT_EQ(Digest(Request()).size(), 64u);
  v1::CalibrateRequest newer;
  const std::string unknown_field = "\xa0\x06\x01";  // 100, a varint
  ASSERT_TRUE(newer.ParseFromString(Request().SerializeAsString() + unknown_field));
  EXPECT_EQ(Digest(Request()), Digest(newer));
}

TEST(PayloadDigest, HasNothingOfTheRequestId) {
  v1::CalibrateRequest named = Request();
  named.set_request_id("9f0c");
  EXPECT_EQ(Digest(Request()), Digest(named));
  EXPECT_EQ(named.request_id(), "9f0c");
}

TEST(PayloadDigest, DiffersWithEveryFieldAndTheMethod) {
  EXPECT_NE(Digest(Request()), Digest(Request(), "ImportProfile"));
  v1::CalibrateRequest request = Request();
  request.set_offset(0.0f);  // said, not left to the default
  EXPECT_NE(Digest(Request()), Digest(request));
  request = Request();
  request.mutable_samples(0)->set_text("texts");
  EXPECT_NE(Digest(Request()), Digest(request));
  request = Request();
  (*request.mutable_labels())["key3"] = "other";
  EXPECT_NE(Digest(Request()), Digest(request));
}

}  // namespace
}  // namespace eta
