// Threads for work that may block: calls of the profile store, calibrations. Bounded, so that what
// cannot be begun soon is refused instead of piling up.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace eta {

class WorkerPool {
 public:
  // Takes `threads` tasks at once, and lets `max_waiting` more wait.
  WorkerPool(int threads, size_t max_waiting);
  // Runs what waits.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // From any thread; does not block. False: full, the task is dropped.
  [[nodiscard]] bool Post(std::function<void()> task);

 private:
  void Run();

  const size_t limit_;  // of unfinished tasks
  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  std::deque<std::function<void()>> waiting_;
  size_t unfinished_ = 0;
  bool stop_ = false;

  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace eta
