// One thread that runs what it is handed, in order. Writing to clients happens here, so that the
// engine's step thread, for which the device waits, is not held up by it: serialising a token and
// giving it to gRPC takes some 8 us, half a millisecond in a step of 64 streams.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace eta {

class TaskThread {
 public:
  TaskThread() : thread_([this] { Run(); }) {}
  // Runs what is left.
  ~TaskThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  // From any thread; does not block.
  void Post(std::function<void()> task) {
    bool sleeping;
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
      sleeping = std::exchange(sleeping_, false);
    }
    if (sleeping) wake_.notify_one();
  }

 private:
  void Run() {
    std::vector<std::function<void()>> tasks;
    std::unique_lock lock(mutex_);
    while (true) {
      tasks.swap(tasks_);
      if (tasks.empty()) {
        if (stop_) return;
        sleeping_ = true;
        wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
        sleeping_ = false;
        continue;
      }
      lock.unlock();
      for (const std::function<void()>& task : tasks) task();
      tasks.clear();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
  bool sleeping_ = false;                     // likewise
  bool stop_ = false;                         // likewise
  std::thread thread_;                        // last: it uses the others
};

}  // namespace eta
