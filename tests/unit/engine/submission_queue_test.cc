// What callers are told before the step thread has seen them.
#include "engine/submission_queue.h"

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

SubmissionQueue::State Waiting(int32_t requests, int64_t tokens) {
  SubmissionQueue::State state;
  state.snapshot.running = 1;
  state.snapshot.waiting = requests;
  state.snapshot.waiting_tokens = tokens;
  return state;
}

class SubmissionQueueTest : public ::testing::Test {
 protected:
  ErrorDetail Refusal(int64_t tokens) const {
    return GetErrorDetail(queue_.Check(tokens, request_));
  }

  Request request_;
  SubmissionQueue queue_{Few()};
};

TEST_F(SubmissionQueueTest, RequestsThatAreBeingMadeHaveTheirPlacesUntilTheyAreGivenBack) {
  queue_.Report(Waiting(1, 10));
  const auto place = queue_.Reserve(10, request_);
  ASSERT_TRUE(place.ok());
  EXPECT_TRUE(queue_.Reserve(10, request_).ok());
  EXPECT_EQ(Refusal(10).reason, "QUEUE_FULL");
  queue_.Release(*place);
  EXPECT_EQ(Refusal(10).reason, "");
  EXPECT_EQ(Refusal(81).reason, "TOKEN_BUDGET") << "ten wait, ten are to come";
  EXPECT_EQ(Refusal(80).reason, "");
}

TEST_F(SubmissionQueueTest, RequestsThatRanAlreadyTakeNoPlaces) {
  SubmissionQueue::State state = Waiting(5, 10);
  state.snapshot.preempted = 3;
  queue_.Report(state);
  EXPECT_EQ(Refusal(10).reason, "");
  state.snapshot.preempted = 2;
  queue_.Report(state);
  EXPECT_EQ(Refusal(10).reason, "QUEUE_FULL");
}

// Callers that are many hold all places while their requests are made, and the queue itself is
// empty.
TEST_F(SubmissionQueueTest, PlacesThatOneTenantHoldsDoNotKeepAnotherOut) {
  request_.tenant = "many";
  Request few;
  few.tenant = "few";
  queue_.Report(Waiting(0, 0));
  std::vector<uint64_t> places;
  for (int i = 0; i < 3; ++i) places.push_back(*queue_.Reserve(1, request_));
  EXPECT_EQ(Refusal(1).reason, "QUEUE_FULL");
  EXPECT_TRUE(queue_.Check(1, few).ok());
  queue_.Report(Waiting(0, 0));
  EXPECT_TRUE(queue_.Reserve(1, few).ok()) << "they are held after a step too";
  EXPECT_TRUE(queue_.Reserve(1, few).ok());
  EXPECT_FALSE(queue_.Reserve(1, few).ok()) << "no more than the other has";
  for (const auto& queue : queue_.Tenants()) {
    EXPECT_EQ(queue.waiting, queue.tenant == "few" ? 2 : 3) << queue.tenant;
  }
  for (const uint64_t place : places) queue_.Release(place);
  EXPECT_TRUE(queue_.Check(1, request_).ok());
}

TEST_F(SubmissionQueueTest, WhenToComeBackIsWhenBothPromptsAndSlotsHaveBeenServed) {
  SubmissionQueue::State state = Waiting(3, 50);
  queue_.Report(state);
  EXPECT_EQ(Refusal(1).retry_after, milliseconds(100)) << "nothing is known yet";
  state.snapshot.wait_estimate.slot_interval = seconds(2);
  queue_.Report(state);
  EXPECT_EQ(Refusal(1).retry_after, seconds(6));
  state.prefill_tokens = 30;
  state.snapshot.wait_estimate.prefill_throughput = 10.0;
  queue_.Report(state);
  EXPECT_EQ(Refusal(1).retry_after, seconds(8)) << "80 tokens at 10 a second";
  state.snapshot.wait_estimate.slot_interval = seconds(200);
  queue_.Report(state);
  EXPECT_EQ(Refusal(1).retry_after, seconds(30)) << "the longest hint";
}

TEST_F(SubmissionQueueTest, ADrainWaitsForTheLastRequestAndThenForTheOrderToEndIt) {
  queue_.Report(Waiting(0, 0));
  std::thread drain([this] { queue_.Drain(Clock::now() + milliseconds(20)); });
  while (!queue_.Take(/*rest=*/true).abandon) {
  }
  EXPECT_EQ(Refusal(1).reason, "DRAINING");
  EXPECT_EQ(Refusal(1).retry_after, milliseconds(100)) << "another replica takes it at once";
  queue_.Report({});
  drain.join();
}

TEST_F(SubmissionQueueTest, ClosedItRefusesEverythingAndSaysWhy) {
  EXPECT_TRUE(queue_.Close().requests.empty());
  EXPECT_EQ(Refusal(1).reason, "DEVICE_ERROR");
  EXPECT_EQ(Refusal(1).retry_after, seconds(1)) << "the process restarts";
  EXPECT_TRUE(queue_.Snapshot().out_of_memory);
}

}  // namespace
}  // namespace eta
