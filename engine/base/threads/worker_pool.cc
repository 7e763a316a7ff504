#include "engine/base/threads/worker_pool.h"

#include <algorithm>
#include <optional>
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
    Share* const share = options_.of_owner > 0 ? &shares_[owner.name] : nullptr;
    tasks_.Push(owner.name, std::move(task));
    ++unfinished_;  // from here on nothing fails
    if (share != nullptr) {
      ++share->unfinished;
      if (OverShare(*share) > 0) ++over_share_;
    }
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
  return std::max(unfinished_ - std::min(unfinished_, threads), over_share_);
}

size_t WorkerPool::OverShare(const Share& share) const {
  return share.unfinished - std::min(share.unfinished, static_cast<size_t>(options_.of_owner));
}

bool WorkerPool::HasRoomFor(const TaskOwner& owner) const {
  const auto found = shares_.find(owner.name);
  const Share share = found == shares_.end() ? Share() : found->second;
  const auto most = static_cast<size_t>(options_.of_owner);
  const bool in_share = most == 0 || share.unfinished < most;
  if (unfinished_ < static_cast<size_t>(options_.threads) && in_share) return true;
  const size_t kept = owner.is_operator ? 0 : options_.operators;
  const size_t own = in_share ? tasks_.SizeOf(owner.name) : OverShare(share);
  return HasRoom(own, Waiting() + kept, options_.waiting);
}

void WorkerPool::Run() {
  MutexLock lock(mutex_);
  while (true) {
    std::optional<std::function<void()>> task;
    auto share = shares_.end();
    wake_.Wait(lock, [&]() REQUIRES(mutex_) {
      if (tasks_.empty()) return stop_;
      task = tasks_.PopOf([&](const std::string& owner) REQUIRES(mutex_) {
        share = shares_.find(owner);
        return share == shares_.end() ||
               share->second.running < static_cast<size_t>(options_.of_owner);
      });
      return task.has_value();
    });
    if (!task) return;
    if (share != shares_.end()) ++share->second.running;
    if (stop_ && tasks_.empty()) wake_.NotifyAll();  // those who wait for an owner's turn
    lock.Unlock();
    (*task)();
    task.reset();  // what it holds goes before it counts as finished
    lock.Lock();
    --unfinished_;
    if (share == shares_.end()) continue;
    if (OverShare(share->second) > 0) --over_share_;
    --share->second.running;
    if (--share->second.unfinished == 0) shares_.erase(share);
  }
}

}  // namespace eta
