#include "service/worker_pool.h"

#include <utility>

#include "kernels/failpoint.h"

namespace eta {

WorkerPool::WorkerPool(int threads, size_t max_waiting)
    : limit_(static_cast<size_t>(threads) + max_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (unfinished_ >= limit_ || ETA_FAILPOINT(kWorkerPost)) return false;
    ++unfinished_;
    waiting_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void WorkerPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes before it counts as finished
    lock.lock();
    --unfinished_;
  }
}

}  // namespace eta
