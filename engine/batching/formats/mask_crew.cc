#include "engine/batching/formats/mask_crew.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <utility>

#include "engine/base/mutex.h"
#include "kernels/system/usable_cpus.h"

namespace eta {
namespace {

constexpr int kMostThreads = 8;

// Null where there are no threads to be had: then the step thread fills all.
std::unique_ptr<WorkerPool> MakePool(int threads) {
  try {
    return std::make_unique<WorkerPool>(
        WorkerPoolOptions{.threads = threads, .waiting = static_cast<size_t>(threads)});
  } catch (const std::system_error&) {
    return nullptr;
  }
}

}  // namespace

struct MaskCrew::Round {
  std::vector<std::shared_ptr<BoundAnswer>> answers;
  std::atomic<size_t> next = 0;  // the first that nobody has taken
  Mutex mutex;
  CondVar changed;
  size_t filled GUARDED_BY(mutex) = 0;
};

void MaskCrew::Work(Round& round) {
  const size_t count = round.answers.size();
  size_t filled = 0;
  for (size_t i = round.next++; i < count; i = round.next++, ++filled) round.answers[i]->Fill();
  if (filled == 0) return;
  const MutexLock lock(round.mutex);
  round.filled += filled;
  if (round.filled == count) round.changed.NotifyAll();
}

void MaskCrew::Begin(std::vector<std::shared_ptr<BoundAnswer>> answers) {
  if (answers.empty()) return;
  if (threads_ == 0) {  // the step thread takes part, so one fewer than can compute
    threads_ = std::clamp(ReadUsableCpus().threads() - 1, 1, kMostThreads);
    pool_ = MakePool(threads_);
  }
  round_ = std::make_shared<Round>();
  round_->answers = std::move(answers);
  const auto tasks = std::min(static_cast<size_t>(threads_), round_->answers.size());
  for (size_t i = 0; pool_ != nullptr && i < tasks; ++i) {
    if (!pool_->Post({}, [round = round_] { Work(*round); })) break;
  }
}

void MaskCrew::Join() {
  const std::shared_ptr<Round> round = std::exchange(round_, nullptr);
  if (round == nullptr) return;
  Work(*round);
  MutexLock lock(round->mutex);
  round->changed.Wait(
      lock, [&]() REQUIRES(round->mutex) { return round->filled == round->answers.size(); });
}

}  // namespace eta
