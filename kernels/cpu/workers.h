// A fixed set of threads that run the tasks of one op together with the calling thread.
//
// One thread at a time calls Run(). Task i runs exactly once, on any of the threads. So a task's
// result must not depend on the thread; the thread's index is for scratch memory. Worker threads
// flush denormals to zero, and so does the caller inside Run(): denormal weights slow attention
// several times over and carry no information.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace eta::cpu {

class Workers {
 public:
  // num_threads >= 1, the caller included.
  explicit Workers(int num_threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls task(index, thread) for index 0 .. num_tasks - 1, thread in [0, num_threads), and waits.
  // It does not wait for a thread that wakes after the last task has begun. If a task throws
  // std::bad_alloc, the other tasks still run, and then Run throws it. A task may throw nothing
  // else.
  void Run(int64_t num_tasks, const std::function<void(int64_t index, int thread)>& task);

 private:
  void Loop(int thread);
  void AwaitChange(uint64_t seen);
  bool Join();
  void Drain(int thread);

  static constexpr int kClosed = -1;

  std::vector<std::thread> threads_;
  // Written by the caller while joined_ is kClosed, read by threads that have joined.
  const std::function<void(int64_t, int)>* task_ = nullptr;
  int64_t num_tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<int> joined_{kClosed};  // worker threads inside the current op
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> no_memory_{false};  // true: a task of this op had no memory
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Where tasks of several jobs are numbered through: the job that has task `index`. `first` is the
// number of a job's first task. REQUIRES: index >= that of the first job; jobs in this order.
template <class Job>
const Job& JobOf(std::span<const Job> jobs, int64_t index, int64_t Job::*first) {
  return *(std::ranges::upper_bound(jobs, index, {}, first) - 1);
}

}  // namespace eta::cpu
