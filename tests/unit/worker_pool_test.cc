// Work that may block: so much at once, so much more that waits, nothing lost.
#include "service/worker_pool.h"

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace eta {
namespace {

TEST(WorkerPoolTest, TakesSoMuchAtOnceLetsSoMuchWaitAndRefusesTheRest) {
  std::latch begun(2), go(1);
  std::atomic<int> done = 0;
  {
    WorkerPool pool(2, 3);
    const auto task = [&] {
      begun.count_down();
      go.wait();
      ++done;
    };
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(pool.Post(task));
    begun.wait();  // both at once
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool.Post([&] { ++done; })) << i;
    EXPECT_FALSE(pool.Post([&] { ++done; }));
    EXPECT_EQ(done, 0);
    go.count_down();
  }
  EXPECT_EQ(done, 5) << "what waits is run before the end";
}

TEST(WorkerPoolTest, WhatATaskHoldsIsGoneBeforeThereIsRoomForTheNext) {
  WorkerPool pool(1, 0);
  for (int i = 0; i < 200; ++i) {
    auto held = std::make_shared<int>(i);
    const std::weak_ptr<int> watched = held;
    while (!pool.Post([held] {})) std::this_thread::yield();
    held.reset();
    while (!pool.Post([] {})) std::this_thread::yield();
    EXPECT_TRUE(watched.expired()) << i;
  }
}

TEST(WorkerPoolTest, EachTaskOfManyThreadsIsRunOnceOrRefused) {
  std::atomic<int> taken = 0, run = 0;
  {
    WorkerPool pool(3, 8);
    std::vector<std::thread> posting;
    for (int i = 0; i < 4; ++i) {
      posting.emplace_back([&] {
        for (int n = 0; n < 500; ++n) taken += pool.Post([&] { ++run; });
      });
    }
    for (std::thread& thread : posting) thread.join();
  }
  EXPECT_GT(taken, 0);
  EXPECT_EQ(run, taken);
}

}  // namespace
}  // namespace eta
