// What waits for a stream's reader: in order, merged while it waits, one move at a time.
#include "service/calls/outbound_queue.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace eta {
namespace {

using Queue = OutboundQueue<std::string>;

// Messages in lower case merge, others stay alone.
bool MergeLowerCase(std::string& last, const std::string& next) {
  const auto is_lower = [](const std::string& text) { return text[0] >= 'a' && text[0] <= 'z'; };
  if (!is_lower(last) || !is_lower(next)) return false;
  last += next;
  return true;
}

class OutboundQueueTest : public ::testing::Test {
 protected:
  bool Push(const std::string& message) { return queue_.Push(message, message.size()); }
  // What the writer writes next; "" for nothing, "end" for the end.
  std::string Next() {
    const auto move = queue_.Next();
    if (!move) return "";
    return move->message ? *move->message : "end";
  }
  std::string WriteNext() {
    const std::string next = Next();
    if (!next.empty() && next != "end") queue_.Written(true);
    return next;
  }

  Queue queue_{MergeLowerCase, {.messages = 3, .bytes = 100}};
};

TEST_F(OutboundQueueTest, MessagesComeInOrderOneAtATime) {
  EXPECT_TRUE(Push("A"));
  Push("B");
  EXPECT_EQ(Next(), "A");
  EXPECT_EQ(Next(), "") << "A is being written";
  queue_.Written(true);
  EXPECT_EQ(WriteNext(), "B");
  EXPECT_EQ(Next(), "");
}

TEST_F(OutboundQueueTest, WhatWaitsIsMergedAndWhatIsWrittenIsNot) {
  Push("a");
  EXPECT_EQ(Next(), "a");
  Push("b");
  Push("c");
  Push("D");
  Push("e");
  queue_.Written(true);
  EXPECT_EQ(WriteNext(), "bc");
  EXPECT_EQ(WriteNext(), "D");
  EXPECT_EQ(WriteNext(), "e");
}

TEST_F(OutboundQueueTest, SomebodyIsToldOnceUntilHeComesAndNobodyWhileAMoveIsUnderWay) {
  EXPECT_TRUE(Push("A"));
  EXPECT_FALSE(Push("B")) << "he has been told";
  queue_.Posted();
  EXPECT_TRUE(Push("C"));
  queue_.Posted();
  EXPECT_EQ(Next(), "A");
  EXPECT_FALSE(Push("D")) << "who writes A comes back";
  queue_.Written(true);
  EXPECT_TRUE(Push("E"));
}

TEST_F(OutboundQueueTest, IsFullByMessagesAlsoWhereTheyWereMerged) {
  Push("a");
  Push("b");
  EXPECT_FALSE(queue_.Full());
  Push("c");
  EXPECT_TRUE(queue_.Full());
  EXPECT_EQ(WriteNext(), "abc");
  EXPECT_FALSE(queue_.Full());
}

TEST_F(OutboundQueueTest, IsFullByBytes) {
  Push(std::string(99, 'A'));
  EXPECT_FALSE(queue_.Full());
  Push("B");
  EXPECT_TRUE(queue_.Full());
  WriteNext();
  EXPECT_FALSE(queue_.Full());
}

TEST_F(OutboundQueueTest, TheEndComesLastAndOnce) {
  Push("A");
  EXPECT_TRUE(queue_.Close()) << "A waits";
  EXPECT_FALSE(Push("B")) << "it is closed";
  queue_.SetEnd(absl::OkStatus());
  EXPECT_EQ(WriteNext(), "A");
  EXPECT_EQ(Next(), "end");
  EXPECT_EQ(Next(), "");
}

TEST_F(OutboundQueueTest, WithNothingToWriteTheEndIsNext) {
  EXPECT_FALSE(queue_.Close());
  queue_.SetEnd(absl::CancelledError("left"));
  const auto move = queue_.Next();
  ASSERT_TRUE(move && move->end);
  EXPECT_EQ(*move->end, absl::CancelledError("left"));
}

TEST_F(OutboundQueueTest, AClientThatIsGoneGetsNothingButTheEnd) {
  Push("A");
  Push("B");
  EXPECT_EQ(Next(), "A");
  queue_.Written(false);
  EXPECT_FALSE(Push("C"));
  EXPECT_EQ(Next(), "");
  EXPECT_FALSE(queue_.Close());
  queue_.SetEnd(absl::OkStatus());
  EXPECT_EQ(Next(), "end");
}

TEST_F(OutboundQueueTest, StallsWhileAMoveTakesTooLong) {
  Push("A");
  EXPECT_FALSE(queue_.Stalled(std::chrono::milliseconds(-1))) << "nothing is under way";
  EXPECT_EQ(Next(), "A");
  EXPECT_TRUE(queue_.Stalled(std::chrono::milliseconds(-1)));
  EXPECT_FALSE(queue_.Stalled(std::chrono::hours(1)));
  queue_.Written(true);
  EXPECT_FALSE(queue_.Stalled(std::chrono::milliseconds(-1)));
}

// Makers on threads of their own and two who write: nothing is lost, doubled or out of its order.
TEST(OutboundQueueThreadsTest, EachMakersMessagesArriveInItsOrder) {
  constexpr int kMakers = 3, kMessages = 500;
  struct Message {
    int maker = 0, first = 0, last = 0;
  };
  OutboundQueue<Message> queue([](Message& last, const Message& next) {
    if (last.maker != next.maker) return false;
    last.last = next.last;
    return true;
  });
  std::vector<int> next(kMakers);  // of whose move it is
  std::atomic<bool> ended = false;
  int wrong = 0;
  const auto write = [&] {
    while (const auto move = queue.Next()) {
      if (move->end) {
        ended = true;
        return;
      }
      const Message& message = *move->message;
      if (message.first != next[static_cast<size_t>(message.maker)]) ++wrong;
      next[static_cast<size_t>(message.maker)] = message.last + 1;
      queue.Written(true);
    }
  };
  std::vector<std::thread> makers;
  for (int maker = 0; maker < kMakers; ++maker) {
    makers.emplace_back([&, maker] {
      for (int i = 0; i < kMessages; ++i) {
        if (queue.Push({.maker = maker, .first = i, .last = i}, 1)) {
          queue.Posted();
          write();
        }
      }
    });
  }
  for (std::thread& maker : makers) maker.join();
  (void)queue.Close();
  queue.SetEnd(absl::OkStatus());
  write();
  EXPECT_TRUE(ended);
  EXPECT_EQ(wrong, 0);
  for (const int count : next) EXPECT_EQ(count, kMessages);
}

}  // namespace
}  // namespace eta
