// What callers are told before the step thread has seen them.
#include "engine/front/submission_queue.h"

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

class SubmissionQueueTest : public ::testing::Test {
 protected:
  using Reservation = SubmissionQueue::Reservation;

  ErrorDetail Refusal(int64_t tokens) const {
    return GetErrorDetail(queue_.Check(tokens, request_));
  }
  Reservation Reserve(int64_t tokens, const std::string& tenant = "") {
    request_.tenant = tenant;
    return *queue_.Reserve(tokens, request_);
  }

  Request request_;
  SubmissionQueue queue_{Few()};
};

TEST_F(SubmissionQueueTest, RequestsThatAreBeingMadeHaveTheirPlacesUntilTheyAreGivenUp) {
  const Reservation first = Reserve(10);
  const Reservation second = Reserve(10);
  {
    const Reservation third = Reserve(10);
    EXPECT_EQ(Refusal(10).reason, "QUEUE_FULL");
    EXPECT_EQ(queue_.Snapshot().waiting, 3);
    EXPECT_EQ(queue_.Snapshot().waiting_tokens, 30);
  }
  EXPECT_EQ(Refusal(10).reason, "");
  EXPECT_EQ(Refusal(81).reason, "TOKEN_BUDGET") << "twenty tokens wait";
  EXPECT_EQ(Refusal(80).reason, "");
}

TEST_F(SubmissionQueueTest, ARequestThatStartedOrEndedLeavesItsPlace) {
  std::vector<Reservation> places;
  for (int i = 0; i < 3; ++i) places.push_back(Reserve(10));
  EXPECT_EQ(Refusal(10).reason, "QUEUE_FULL");
  SubmissionQueue::State state;
  state.snapshot.running = 1;
  state.snapshot.preempted = 3;  // they take no places
  state.left = {places[1].handle()};
  queue_.Report(state);
  EXPECT_EQ(Refusal(10).reason, "");
  EXPECT_EQ(queue_.Snapshot().waiting, 5);
  EXPECT_EQ(queue_.Snapshot().unstarted(), 2);
}

// Callers that are many hold all places while their requests are made, and the queue itself is
// empty.
TEST_F(SubmissionQueueTest, PlacesThatOneTenantHoldsDoNotKeepAnotherOut) {
  std::vector<Reservation> places;
  for (int i = 0; i < 3; ++i) places.push_back(Reserve(1, "many"));
  EXPECT_EQ(Refusal(1).reason, "QUEUE_FULL");
  request_.tenant = "few";
  EXPECT_EQ(Refusal(1).reason, "");
  Reservation displacer = Reserve(1, "few");
  EXPECT_FALSE(queue_.Reserve(1, request_).ok()) << "two and two: it would have most";
  for (const auto& queue : queue_.Tenants()) {
    EXPECT_EQ(queue.waiting, queue.tenant == "few" ? 1 : 2) << queue.tenant;
  }
  EXPECT_EQ(GetErrorDetail(queue_.Join(places[2], nullptr)).reason, "QUEUE_FULL")
      << "the newest has lost its place";
  const auto displaced = queue_.Receive(/*rest=*/false).displaced;
  ASSERT_EQ(displaced.size(), 1u);
  EXPECT_EQ(displaced[0].handle, places[2].handle());
  EXPECT_EQ(GetErrorDetail(displaced[0].status).reason, "QUEUE_FULL");
}

TEST_F(SubmissionQueueTest, WhenToComeBackIsWhenBothPromptsAndSlotsHaveBeenServed) {
  const Reservation first = Reserve(20);
  const Reservation second = Reserve(20);
  const Reservation third = Reserve(10);
  SubmissionQueue::State state;
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
  SubmissionQueue::State state;
  state.snapshot.running = 1;
  queue_.Report(state);
  std::thread drain([this] { queue_.Drain(Clock::now() + milliseconds(20)); });
  while (!queue_.Receive(/*rest=*/true).abandon) {
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
