// A thread that calls one function again and again.
#include "engine/base/threads/loop_thread.h"

#include <pthread.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::hours kLong{1};

TEST(LoopThreadTest, CallsAtOnceAndThenWhenTheBodySaid) {
  std::atomic<int> calls = 0;
  std::promise<void> third;
  LoopThread loop("loop", [&]() -> Clock::time_point {
    if (++calls == 3) third.set_value();
    return calls < 3 ? Clock::now() + milliseconds(1) : LoopThread::kWhenWoken;
  });
  third.get_future().wait();
  loop.Stop();
  EXPECT_EQ(calls, 3);
}

TEST(LoopThreadTest, WithAnIntervalTheFirstCallWaitsForIt) {
  std::promise<Clock::time_point> called;
  std::atomic<bool> told = false;
  const Clock::time_point begin = Clock::now();
  const LoopThread loop("loop", milliseconds(20), [&] {
    if (!told.exchange(true)) called.set_value(Clock::now());
  });
  EXPECT_GE(called.get_future().get() - begin, milliseconds(20));
}

TEST(LoopThreadTest, AWakeIsNotLostWhereverItComes) {
  constexpr int kWakes = 1000;
  std::atomic<int> asked = 0, seen = 0;
  std::promise<void> all;
  LoopThread loop("loop", [&] {
    seen = asked.load();
    if (seen == kWakes && asked.exchange(kWakes + 1) == kWakes) all.set_value();
    return LoopThread::kWhenWoken;
  });
  for (int i = 0; i < kWakes; ++i) {
    ++asked;
    loop.Wake();
  }
  all.get_future().wait();
}

TEST(LoopThreadTest, ABodyMayWakeItself) {
  std::promise<LoopThread*> made;
  const std::shared_future<LoopThread*> self = made.get_future().share();
  std::promise<void> third;
  std::atomic<int> calls = 0;
  LoopThread loop("loop", [&] {
    if (++calls < 3) self.get()->Wake();
    if (calls == 3) third.set_value();
    return LoopThread::kWhenWoken;
  });
  made.set_value(&loop);
  third.get_future().wait();
  loop.Stop();
  EXPECT_EQ(calls, 3);
}

TEST(LoopThreadTest, StopDoesNotWaitForTheIntervalButForTheCallThatRuns) {
  std::promise<void> begun;
  std::atomic<bool> ended = false;
  LoopThread loop("loop", [&] {
    begun.set_value();
    std::this_thread::sleep_for(milliseconds(20));
    ended = true;
    return Clock::now() + kLong;
  });
  begun.get_future().wait();
  loop.Stop();
  EXPECT_TRUE(ended);
  loop.Stop();  // nothing more to do
}

TEST(LoopThreadTest, MayBeStoppedByTwoThreadsAtOnce) {
  LoopThread loop("loop", kLong, [] {});
  std::thread other([&loop] { loop.Stop(); });
  loop.Stop();
  other.join();
}

TEST(LoopThreadTest, HasItsName) {
  std::promise<std::string> name;
  const LoopThread loop("named_loop", [&name] {
    char text[16] = {};
    pthread_getname_np(pthread_self(), text, sizeof(text));
    name.set_value(text);
    return LoopThread::kWhenWoken;
  });
  EXPECT_EQ(name.get_future().get(), "named_loop");
}

}  // namespace
}  // namespace eta
