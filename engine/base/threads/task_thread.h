// One thread that runs what it is handed, in order. Writing to clients happens here, so that the
// engine's step thread, for which the device waits, is not held up by it: serialising a token and
// giving it to gRPC takes some 8 us, half a millisecond in a step of 64 streams.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/base/threads/loop_thread.h"

namespace eta {

class TaskThread {
 public:
  explicit TaskThread(const char* name)
      : thread_(name, [this] {
          RunTasks();
          return LoopThread::kWhenWoken;
        }) {}
  // Runs what is left.
  ~TaskThread() {
    thread_.Stop();
    RunTasks();
  }

  // From any thread; does not block.
  void Post(std::function<void()> task) {
    bool first;
    {
      const MutexLock lock(mutex_);
      first = tasks_.empty();
      tasks_.push_back(std::move(task));
    }
    if (first) thread_.Wake();  // else whoever posted the first has done so
  }

 private:
  void RunTasks() {
    std::vector<std::function<void()>> tasks;
    while (true) {
      {
        const MutexLock lock(mutex_);
        tasks.swap(tasks_);
      }
      if (tasks.empty()) return;
      for (const std::function<void()>& task : tasks) task();
      tasks.clear();
    }
  }

  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  LoopThread thread_;  // last: it uses the others
};

}  // namespace eta
