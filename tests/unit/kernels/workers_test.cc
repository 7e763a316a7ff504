// The threads of the CPU backend: every task once, in any number of threads, op after op.

#include "kernels/cpu/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

namespace eta::cpu {
namespace {

class WorkersTest : public ::testing::TestWithParam<int> {};

TEST_P(WorkersTest, EveryTaskRunsOnce) {
  Workers workers(GetParam());
  EXPECT_EQ(workers.num_threads(), GetParam());
  for (const int64_t num_tasks : {0, 1, 2, 3, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
    workers.Run(num_tasks, [&](int64_t index, int) { ++runs[static_cast<size_t>(index)]; });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

TEST_P(WorkersTest, ATaskOwnsItsThreadsScratch) {
  Workers workers(GetParam());
  std::vector<int64_t> sums(static_cast<size_t>(GetParam()));
  for (int op = 0; op < 200; ++op) {
    workers.Run(64, [&](int64_t index, int thread) { sums[static_cast<size_t>(thread)] += index; });
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), 200 * 64 * 63 / 2);
}

TEST_P(WorkersTest, ResultsAreVisibleToTheCallerAndToTheNextOp) {
  Workers workers(GetParam());
  std::vector<int64_t> values(257, 0);
  for (int op = 0; op < 300; ++op) {
    // The neighbour's value comes from another thread's task of the op before.
    std::vector<int64_t> next(values.size());
    workers.Run(static_cast<int64_t>(values.size()), [&](int64_t index, int) {
      const auto i = static_cast<size_t>(index);
      next[i] = values[(i + 1) % values.size()] + 1;
    });
    values = next;
  }
  for (const int64_t value : values) EXPECT_EQ(value, 300);
}

TEST_P(WorkersTest, SleepingThreadsWakeForTheNextOp) {
  Workers workers(GetParam());
  for (int op = 0; op < 3; ++op) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> runs{0};
    workers.Run(50, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs.load(), 50);
  }
}

TEST_P(WorkersTest, DenormalsAreZeroInsideTasksAndOnlyThere) {
  Workers workers(GetParam());
  volatile float smallest = std::numeric_limits<float>::min();
  std::atomic<int> denormals{0};
  workers.Run(100, [&](int64_t, int) {
    const volatile float half = smallest * 0.5f;
    if (half != 0.0f) ++denormals;
  });
  EXPECT_EQ(denormals.load(), 0);
  const volatile float half = smallest * 0.5f;
  EXPECT_NE(half, 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkersTest, ::testing::Values(1, 2, 3, 7));

// Tasks on the caller's thread and on the others.
TEST(Workers, ATaskWithoutMemoryThrowsAtTheCallerWhenAllAreDone) {
  Workers workers(4);
  for (int64_t without = 0; without < 64; ++without) {
    std::atomic<int> ran = 0;
    EXPECT_THROW(workers.Run(64,
                             [&](int64_t i, int) {
                               ++ran;
                               if (i == without) throw std::bad_alloc();
                             }),
                 std::bad_alloc);
    EXPECT_EQ(ran, 64);
  }
  std::atomic<int> ran = 0;
  workers.Run(64, [&](int64_t, int) { ++ran; });
  EXPECT_EQ(ran, 64);
}

}  // namespace
}  // namespace eta::cpu
