// One thread that runs what it is handed, in order.
#include "engine/base/threads/task_thread.h"

#include <array>
#include <future>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace eta {
namespace {

TEST(TaskThreadTest, RunsTasksOfManyThreadsEachInItsOrderAndWhatIsLeftAtTheEnd) {
  constexpr int kThreads = 4, kTasks = 1000;
  std::array<int, kThreads> next{};  // of the tasks' thread alone: no lock
  int wrong = 0;
  {
    TaskThread tasks("tasks");
    std::vector<std::thread> posting;
    for (size_t i = 0; i < kThreads; ++i) {
      posting.emplace_back([&, i] {
        for (int n = 0; n < kTasks; ++n) tasks.Post([&, i, n] { wrong += next[i]++ != n; });
      });
    }
    for (std::thread& thread : posting) thread.join();
  }
  EXPECT_EQ(wrong, 0);
  for (const int count : next) EXPECT_EQ(count, kTasks);
}

TEST(TaskThreadTest, WakesUpAgainAndTakesTasksFromATask) {
  TaskThread tasks("tasks");
  for (int i = 0; i < 100; ++i) {
    std::promise<std::thread::id> inner;
    tasks.Post([&] { tasks.Post([&] { inner.set_value(std::this_thread::get_id()); }); });
    EXPECT_NE(inner.get_future().get(), std::this_thread::get_id());
  }
}

}  // namespace
}  // namespace eta
