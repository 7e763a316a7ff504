// Whose tasks wait for a thread, in which order they begin, and who is refused; nothing is lost.
#include "engine/base/threads/worker_pool.h"

#include <atomic>
#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::ElementsAre;

// A pool of one thread, which is at work until it is let go.
class HeldPool {
 public:
  explicit HeldPool(const WorkerPoolOptions& options) : pool_(options) {
    EXPECT_TRUE(pool_.Post({.name = "first"}, [this] {
      std::unique_lock lock(mutex_);
      begun_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return go_; });
    }));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return begun_; });
  }
  ~HeldPool() { Go(); }

  bool Post(const std::string& owner, bool is_operator = false) {
    return pool_.Post({.name = owner, .is_operator = is_operator}, [this, owner] {
      const std::lock_guard lock(mutex_);
      ran_.push_back(owner);
      changed_.notify_all();
    });
  }
  // How many of an owner's are let in, one after another.
  int Fill(const std::string& owner, bool is_operator = false) {
    int count = 0;
    while (Post(owner, is_operator)) ++count;
    return count;
  }
  void Go() {
    const std::lock_guard lock(mutex_);
    go_ = true;
    changed_.notify_all();
  }
  std::vector<std::string> Ran(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ran_.size() == count; });
    return ran_;
  }
  size_t waiting() const { return pool_.waiting(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false;
  bool go_ = false;
  std::vector<std::string> ran_;
  WorkerPool pool_;  // last: its threads use the others
};

TEST(WorkerPool, EachOwnerMayTakeHalfOfWhatIsLeft) {
  HeldPool pool({.threads = 1, .waiting = 64});
  EXPECT_EQ(pool.Fill("a"), 32);
  EXPECT_EQ(pool.Fill("b"), 16);
  EXPECT_EQ(pool.Fill("c"), 8);
  EXPECT_EQ(pool.Fill("a"), 0);
  EXPECT_EQ(pool.waiting(), 56);
}

TEST(WorkerPool, TasksThatBlockLeaveThreadsToOtherOwners) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> begun;
  bool go = false;
  WorkerPool pool({.threads = 4, .waiting = 64, .of_owner = 2});
  const auto post = [&](const std::string& owner) {
    return pool.Post({.name = owner}, [&, owner] {
      std::unique_lock lock(mutex);
      begun.push_back(owner);
      changed.notify_all();
      changed.wait(lock, [&] { return go; });
    });
  };
  const auto await = [&](size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun.size() == count; });
  };
  int taken = 0;
  while (post("a")) ++taken;
  EXPECT_EQ(taken, 2 + 32) << "its threads, and half of the places";
  await(2);
  EXPECT_EQ(pool.waiting(), 32u);
  EXPECT_TRUE(post("b"));
  await(3);
  EXPECT_EQ(begun, (std::vector<std::string>{"a", "a", "b"}));
  EXPECT_EQ(pool.waiting(), 32u);
  EXPECT_TRUE(post("b"));
  await(4);
  EXPECT_TRUE(post("b"));
  EXPECT_TRUE(post("c")) << "now all threads are taken";
  EXPECT_EQ(pool.waiting(), 34u);
  {
    const std::lock_guard lock(mutex);
    go = true;
    changed.notify_all();
  }
  await(38);
  while (pool.waiting() > 0) std::this_thread::yield();
}

TEST(WorkerPool, AnEndRunsWhatWaitsForItsOwnersTurn) {
  std::atomic<int> ran = 0;
  {
    WorkerPool pool({.threads = 3, .waiting = 64, .of_owner = 1});
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(pool.Post({.name = "a"}, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++ran;
      }));
    }
  }
  EXPECT_EQ(ran, 20);
}

TEST(WorkerPool, OwnersTakeTurns) {
  HeldPool pool({.threads = 1, .waiting = 64});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(pool.Post("a"));
  EXPECT_TRUE(pool.Post("b"));
  EXPECT_TRUE(pool.Post("c"));
  EXPECT_TRUE(pool.Post("c"));
  pool.Go();
  EXPECT_THAT(pool.Ran(7), ElementsAre("a", "b", "c", "a", "c", "a", "a"));
}

TEST(WorkerPool, SomePlacesAreTheOperators) {
  HeldPool pool({.threads = 1, .waiting = 10, .operators = 2});
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(pool.Post("t" + std::to_string(i))) << i;
  EXPECT_FALSE(pool.Post("t8"));
  EXPECT_EQ(pool.Fill("ops", /*is_operator=*/true), 1);
  EXPECT_EQ(pool.Fill("root", /*is_operator=*/true), 1);
  EXPECT_EQ(pool.waiting(), 10);
}

TEST(WorkerPool, TakesSoMuchAtOnceAndRunsWhatWaitsBeforeItsEnd) {
  std::latch begun(2), go(1);
  std::atomic<int> done = 0;
  {
    WorkerPool pool({.threads = 2, .waiting = 3});
    const auto task = [&] {
      begun.count_down();
      go.wait();
      ++done;
    };
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(pool.Post({.name = "a"}, task));
    begun.wait();  // both at once
    for (const char* owner : {"a", "b", "c"}) {
      EXPECT_TRUE(pool.Post({.name = owner}, [&] { ++done; })) << owner;
    }
    EXPECT_FALSE(pool.Post({.name = "d"}, [&] { ++done; }));
    EXPECT_EQ(done, 0);
    go.count_down();
  }
  EXPECT_EQ(done, 5);
}

TEST(WorkerPool, WhatATaskHoldsIsGoneBeforeThereIsRoomForTheNext) {
  WorkerPool pool({.threads = 1});
  for (int i = 0; i < 200; ++i) {
    auto held = std::make_shared<int>(i);
    const std::weak_ptr<int> watched = held;
    while (!pool.Post({.name = "a"}, [held] {})) std::this_thread::yield();
    held.reset();
    while (!pool.Post({.name = "a"}, [] {})) std::this_thread::yield();
    EXPECT_TRUE(watched.expired()) << i;
  }
}

TEST(WorkerPool, EachTaskOfManyThreadsIsRunOnceOrRefused) {
  std::atomic<int> taken = 0, run = 0;
  {
    WorkerPool pool({.threads = 3, .waiting = 8});
    std::vector<std::thread> posting;
    for (int i = 0; i < 4; ++i) {
      posting.emplace_back([&, owner = TaskOwner{.name = std::to_string(i)}] {
        for (int n = 0; n < 500; ++n) taken += pool.Post(owner, [&] { ++run; });
      });
    }
    for (std::thread& thread : posting) thread.join();
  }
  EXPECT_GT(taken, 0);
  EXPECT_EQ(run, taken);
}

}  // namespace
}  // namespace eta
