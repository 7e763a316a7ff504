#include "service/worker_pool.h"

#include <algorithm>
#include <utility>

#include "kernels/failpoint.h"

namespace eta {

WorkerPool::WorkerPool(const WorkerPoolOptions& options) : options_(options) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::Post(const TaskOwner& owner, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    const auto queue = std::find_if(queues_.begin(), queues_.end(),
                                    [&](const Queue& other) { return other.owner == owner.name; });
    const bool first = queue == queues_.end();
    if (!HasRoom(owner, first ? 0 : queue->tasks.size()) || ETA_FAILPOINT(kWorkerPost)) {
      return false;
    }
    if (first) {
      Queue fresh{.owner = owner.name, .tasks = {}};
      fresh.tasks.push_back(std::move(task));
      queues_.push_back(std::move(fresh));
    } else {
      queue->tasks.push_back(std::move(task));
    }
    ++unfinished_;
  }
  wake_.notify_one();
  return true;
}

size_t WorkerPool::waiting() const {
  const std::lock_guard lock(mutex_);
  return Waiting();
}

size_t WorkerPool::Waiting() const {
  const auto threads = static_cast<size_t>(options_.threads);
  return unfinished_ - std::min(unfinished_, threads);
}

bool WorkerPool::HasRoom(const TaskOwner& owner, size_t own) const {
  if (unfinished_ < static_cast<size_t>(options_.threads)) return true;
  const size_t taken = Waiting() + (owner.is_operator ? 0 : options_.operators);
  return taken < options_.waiting && own < options_.waiting - taken;
}

std::function<void()> WorkerPool::TakeNext() {
  Queue& queue = queues_.front();
  std::function<void()> task = std::move(queue.tasks.front());
  queue.tasks.pop_front();
  if (queue.tasks.empty()) {
    queues_.pop_front();
  } else {
    queues_.splice(queues_.end(), queues_, queues_.begin());
  }
  return task;
}

void WorkerPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !queues_.empty(); });
    if (queues_.empty()) return;
    std::function<void()> task = TakeNext();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes before it counts as finished
    lock.lock();
    --unfinished_;
  }
}

}  // namespace eta
