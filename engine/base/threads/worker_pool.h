// Threads for work that may block: calls of the profile store, calibrations. Bounded, so that what
// cannot be begun soon is refused instead of piling up, and fair (fair_queue.h): an owner may have
// no more tasks waiting than places are free, and what waits is begun in turn by owner.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/threads/fair_queue.h"

namespace eta {

struct WorkerPoolOptions {
  int threads = 0;
  size_t waiting = 0;    // tasks that may wait
  size_t operators = 0;  // of these places, those that only operators may take
};

struct TaskOwner {
  std::string name;
  bool is_operator = false;
};

class WorkerPool {
 public:
  explicit WorkerPool(const WorkerPoolOptions& options);
  // Runs what waits.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // From any thread; does not block. False: no room for one more of this owner's, the task is
  // dropped.
  [[nodiscard]] bool Post(const TaskOwner& owner, std::function<void()> task);

  size_t waiting() const;
  size_t max_waiting() const { return options_.waiting; }

 private:
  // Both with mutex_ held.
  size_t Waiting() const;
  bool HasRoomFor(const TaskOwner& owner) const;
  void Run();

  const WorkerPoolOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  FairQueue<std::function<void()>> tasks_;
  size_t unfinished_ = 0;
  bool stop_ = false;

  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace eta
