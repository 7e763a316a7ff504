// Threads for work that may block: calls of the profile store, calibrations. The queue is bounded:
// what cannot be begun soon is refused. It is fair too (fair_queue.h): an owner may have no more
// tasks waiting than there are free places, and owners are served round robin. Where an owner has a
// share of the threads, its tasks that block leave the others to the next. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/base/threads/fair_queue.h"

namespace eta {

struct WorkerPoolOptions {
  int threads = 0;
  size_t waiting = 0;    // tasks that may wait
  size_t operators = 0;  // of these places, those that only operators may take
  int of_owner = 0;      // threads that one owner may have at a time; 0: all
};

struct TaskOwner {
  std::string name;
  bool is_operator = false;
};

class WorkerPool {
 public:
  // Throws std::system_error where there are not as many threads to be had.
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
  struct Share {
    size_t unfinished = 0;
    size_t running = 0;
  };

  size_t Waiting() const REQUIRES(mutex_);
  // Of an owner's unfinished tasks, those that its share of the threads leaves out.
  size_t OverShare(const Share& share) const;
  bool HasRoomFor(const TaskOwner& owner) const REQUIRES(mutex_);
  void Run() EXCLUDES(mutex_);
  void Stop() EXCLUDES(mutex_);

  const WorkerPoolOptions options_;
  mutable Mutex mutex_;
  CondVar wake_;
  FairQueue<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  size_t unfinished_ GUARDED_BY(mutex_) = 0;
  // With a share of the threads alone:
  std::map<std::string, Share> shares_ GUARDED_BY(mutex_);  // of owners with unfinished tasks
  size_t over_share_ GUARDED_BY(mutex_) = 0;                // of all owners
  bool stop_ GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace eta
