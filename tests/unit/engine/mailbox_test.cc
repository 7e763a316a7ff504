// What callers are told before the step thread has seen them.
#include "engine/mailbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Limits Few() {
  Limits limits;
  limits.max_waiting_requests = 3;
  limits.max_waiting_tokens = 100;
  return limits;
}

Mailbox::State Waiting(int32_t requests, int64_t tokens) {
  Mailbox::State state;
  state.snapshot.running = 1;
  state.snapshot.waiting = requests;
  state.snapshot.waiting_tokens = tokens;
  return state;
}

class MailboxTest : public ::testing::Test {
 protected:
  ErrorDetail Refusal(int64_t tokens) const {
    return GetErrorDetail(mailbox_.Check(tokens, request_));
  }

  Request request_;
  Mailbox mailbox_{Few()};
};

TEST_F(MailboxTest, RequestsThatAreBeingMadeHaveTheirPlacesUntilTheyAreGivenBack) {
  mailbox_.Report(Waiting(1, 10));
  const auto place = mailbox_.Reserve(10, request_);
  ASSERT_TRUE(place.ok());
  EXPECT_TRUE(mailbox_.Reserve(10, request_).ok());
  EXPECT_EQ(Refusal(10).reason, "QUEUE_FULL");
  mailbox_.Release(*place);
  EXPECT_EQ(Refusal(10).reason, "");
  EXPECT_EQ(Refusal(81).reason, "TOKEN_BUDGET") << "ten wait, ten are to come";
  EXPECT_EQ(Refusal(80).reason, "");
}

TEST_F(MailboxTest, RequestsThatRanAlreadyTakeNoPlaces) {
  Mailbox::State state = Waiting(5, 10);
  state.snapshot.preempted = 3;
  mailbox_.Report(state);
  EXPECT_EQ(Refusal(10).reason, "");
  state.snapshot.preempted = 2;
  mailbox_.Report(state);
  EXPECT_EQ(Refusal(10).reason, "QUEUE_FULL");
}

// Callers that are many hold all places while their requests are made, and the queue itself is
// empty.
TEST_F(MailboxTest, PlacesThatOneTenantHoldsDoNotKeepAnotherOut) {
  request_.tenant = "many";
  Request few;
  few.tenant = "few";
  mailbox_.Report(Waiting(0, 0));
  std::vector<uint64_t> places;
  for (int i = 0; i < 3; ++i) places.push_back(*mailbox_.Reserve(1, request_));
  EXPECT_EQ(Refusal(1).reason, "QUEUE_FULL");
  EXPECT_TRUE(mailbox_.Check(1, few).ok());
  mailbox_.Report(Waiting(0, 0));
  EXPECT_TRUE(mailbox_.Reserve(1, few).ok()) << "they are held after a step too";
  EXPECT_TRUE(mailbox_.Reserve(1, few).ok());
  EXPECT_FALSE(mailbox_.Reserve(1, few).ok()) << "no more than the other has";
  for (const auto& queue : mailbox_.Tenants()) {
    EXPECT_EQ(queue.waiting, queue.tenant == "few" ? 2 : 3) << queue.tenant;
  }
  for (const uint64_t place : places) mailbox_.Release(place);
  EXPECT_TRUE(mailbox_.Check(1, request_).ok());
}

TEST_F(MailboxTest, WhenToComeBackIsWhenBothPromptsAndSeatsHaveBeenServed) {
  Mailbox::State state = Waiting(3, 50);
  mailbox_.Report(state);
  EXPECT_EQ(Refusal(1).retry_after, milliseconds(100)) << "nothing is known yet";
  state.snapshot.pace.seat_interval = seconds(2);
  mailbox_.Report(state);
  EXPECT_EQ(Refusal(1).retry_after, seconds(6));
  state.prefill_tokens = 30;
  state.snapshot.pace.prefill_rate = 10.0;
  mailbox_.Report(state);
  EXPECT_EQ(Refusal(1).retry_after, seconds(8)) << "80 tokens at 10 a second";
  state.snapshot.pace.seat_interval = seconds(200);
  mailbox_.Report(state);
  EXPECT_EQ(Refusal(1).retry_after, seconds(30)) << "the longest hint";
}

TEST_F(MailboxTest, ADrainWaitsForTheLastRequestAndThenForTheOrderToEndIt) {
  mailbox_.Report(Waiting(0, 0));
  std::thread drain([this] { mailbox_.Drain(Clock::now() + milliseconds(20)); });
  while (!mailbox_.Take(/*rest=*/true).abandon) {
  }
  EXPECT_EQ(Refusal(1).reason, "DRAINING");
  EXPECT_EQ(Refusal(1).retry_after, milliseconds(100)) << "another replica takes it at once";
  mailbox_.Report({});
  drain.join();
}

TEST_F(MailboxTest, ClosedItRefusesEverythingAndSaysWhy) {
  EXPECT_TRUE(mailbox_.Close().requests.empty());
  EXPECT_EQ(Refusal(1).reason, "DEVICE_ERROR");
  EXPECT_EQ(Refusal(1).retry_after, seconds(1)) << "the process restarts";
  EXPECT_TRUE(mailbox_.Snapshot().out_of_memory);
}

}  // namespace
}  // namespace eta
