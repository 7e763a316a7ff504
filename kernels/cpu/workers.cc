#include "kernels/cpu/workers.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <system_error>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace eta::cpu {
namespace {

// The ops of a step follow each other within microseconds, and a wake-up by the operating system
// costs tens of microseconds.
constexpr int kSpinsBeforeSleep = 1500;
// The thread that is waited for may have lost its core to another process.
constexpr int kSpinsBeforeYield = 20000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if defined(__x86_64__)
using FloatControl = unsigned int;
constexpr FloatControl kFlushDenormals = 0x8040;  // FTZ (bit 15) and DAZ (bit 6)
FloatControl GetFloatControl() {
  return _mm_getcsr();
}
void SetFloatControl(FloatControl control) {
  _mm_setcsr(control);
}
#elif defined(__aarch64__)
using FloatControl = uint64_t;
constexpr FloatControl kFlushDenormals = uint64_t{1} << 24;  // FPCR.FZ
FloatControl GetFloatControl() {
  FloatControl control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
void SetFloatControl(FloatControl control) {
  asm volatile("msr fpcr, %0" : : "r"(control));
}
#else
using FloatControl = unsigned int;
constexpr FloatControl kFlushDenormals = 0;
FloatControl GetFloatControl() {
  return 0;
}
void SetFloatControl(FloatControl) {}
#endif

class FlushDenormals {
 public:
  FlushDenormals() : saved_(GetFloatControl()) { SetFloatControl(saved_ | kFlushDenormals); }
  ~FlushDenormals() { SetFloatControl(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  FloatControl saved_;
};

}  // namespace

Workers::Workers(int num_threads) {
  threads_.reserve(static_cast<size_t>(std::max(0, num_threads - 1)));
  for (int thread = 1; thread < num_threads; ++thread) {
    try {
      threads_.emplace_back([this, thread] { Loop(thread); });
      pthread_setname_np(threads_.back().native_handle(), "eta-worker");
    } catch (const std::system_error&) {
      break;  // fewer threads than asked for; num_threads() tells how many
    }
  }
}

Workers::~Workers() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::Run(int64_t num_tasks, const std::function<void(int64_t, int)>& task) {
  if (num_tasks <= 0) return;
  const FlushDenormals flush;
  if (threads_.empty() || num_tasks == 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  task_ = &task;
  num_tasks_ = num_tasks;
  next_.store(0, std::memory_order_relaxed);
  joined_.store(0, std::memory_order_release);
  generation_.fetch_add(1);
  // Both sides are sequentially consistent. So a thread either sees the new generation before it
  // sleeps, or is counted here.
  if (sleeping_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  Drain(0);
  int expected = 0;
  for (int spins = 0; !joined_.compare_exchange_weak(expected, kClosed, std::memory_order_acq_rel);
       ++spins) {
    expected = 0;
    if (spins < kSpinsBeforeYield) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  if (no_memory_.exchange(false, std::memory_order_relaxed)) throw std::bad_alloc();
}

void Workers::Drain(int thread) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < num_tasks_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    // The caller's stack must stay until all threads have left the task.
    try {
      (*task_)(i, thread);
    } catch (const std::bad_alloc&) {
      no_memory_.store(true, std::memory_order_relaxed);
    }
  }
}

bool Workers::Join() {
  int joined = joined_.load(std::memory_order_relaxed);
  while (joined != kClosed) {
    if (joined_.compare_exchange_weak(joined, joined + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void Workers::AwaitChange(uint64_t seen) {
  for (int i = 0; i < kSpinsBeforeSleep; ++i) {
    if (generation_.load(std::memory_order_relaxed) != seen ||
        stop_.load(std::memory_order_relaxed)) {
      return;
    }
    Pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  sleeping_.fetch_add(1);
  wake_.wait(lock, [&] { return generation_.load() != seen || stop_.load(); });
  sleeping_.fetch_sub(1);
}

void Workers::Loop(int thread) {
  const FlushDenormals flush;
  uint64_t seen = 0;
  for (;;) {
    AwaitChange(seen);
    if (stop_.load()) return;
    seen = generation_.load();
    if (!Join()) continue;
    Drain(thread);
    joined_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace eta::cpu
