#include "engine/base/threads/worker_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "kernels/system/failpoint.h"

namespace eta {

WorkerPool::WorkerPool(const WorkerPoolOptions& options) : options_(options) {
  threads_.reserve(static_cast<size_t>(options_.threads));
  try {
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error&) {
    Stop();
    throw;
  }
}

WorkerPool::~WorkerPool() {
  Stop();
}

void WorkerPool::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::Post(const TaskOwner& owner, std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    if (!HasRoomFor(owner) || ETA_FAILPOINT(kWorkerPost)) return false;
    tasks_.Push(owner.name, std::move(task));
    ++unfinished_;
  }
  wake_.NotifyOne();
  return true;
}

size_t WorkerPool::waiting() const {
  const MutexLock lock(mutex_);
  return Waiting();
}

size_t WorkerPool::Waiting() const {
  const auto threads = static_cast<size_t>(options_.threads);
  return unfinished_ - std::min(unfinished_, threads);
}

bool WorkerPool::HasRoomFor(const TaskOwner& owner) const {
  if (unfinished_ < static_cast<size_t>(options_.threads)) return true;
  const size_t kept = owner.is_operator ? 0 : options_.operators;
  return HasRoom(tasks_.SizeOf(owner.name), Waiting() + kept, options_.waiting);
}

void WorkerPool::Run() {
  MutexLock lock(mutex_);
  while (true) {
    wake_.Wait(lock, [this]() REQUIRES(mutex_) { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = tasks_.Pop();
    lock.Unlock();
    task();
    task = nullptr;  // what it holds goes before it counts as finished
    lock.Lock();
    --unfinished_;
  }
}

}  // namespace eta
