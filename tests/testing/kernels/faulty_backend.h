// A backend that forwards to another one until it is told to fail.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/forwarding_backend.h"

namespace eta::testing {

// Faults shared by the test and the backend that the engine owns. Thread-safe.
struct Faults {
  // Bytes of the device; below 0: no limit, and no report of free memory.
  std::atomic<int64_t> memory = -1;
  std::atomic<int> finishes = 0;  // calls of Finish so far

  // Makes the next Finish return `status`.
  void FailNextFinish(absl::Status status) {
    const std::lock_guard lock(mutex);
    next_finish = std::move(status);
  }
  // Makes every Finish from now on return `status`.
  void Break(absl::Status status) {
    const std::lock_guard lock(mutex);
    broken = std::move(status);
  }
  // From now on no Finish returns before Release().
  void Hold() {
    const std::lock_guard lock(mutex);
    held = true;
  }
  void Release() {
    const std::lock_guard lock(mutex);
    held = false;
    released.notify_all();
  }

  std::mutex mutex;
  std::condition_variable released;
  bool held = false;
  absl::Status next_finish;
  absl::Status broken;
};

class FaultyBackend final : public ForwardingBackend {
 public:
  FaultyBackend(std::shared_ptr<Backend> backend, std::shared_ptr<Faults> faults,
                std::string name = "faulty")
      : ForwardingBackend(std::move(backend)), faults_(std::move(faults)), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  std::string description() const override { return name_; }
  absl::StatusOr<size_t> FreeMemory() const override {
    if (faults_->memory < 0) return ForwardingBackend::FreeMemory();
    return static_cast<size_t>(faults_->memory - allocated_);
  }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    if (faults_->memory >= 0 && allocated_ + static_cast<int64_t>(bytes) > faults_->memory) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    }
    allocated_ += static_cast<int64_t>(bytes);
    return ForwardingBackend::Allocate(bytes);
  }
  absl::Status Finish() override {
    const absl::Status done = ForwardingBackend::Finish();
    ++faults_->finishes;
    std::unique_lock lock(faults_->mutex);
    faults_->released.wait(lock, [this] { return !faults_->held; });
    if (!faults_->broken.ok()) return faults_->broken;
    const absl::Status once = std::exchange(faults_->next_finish, absl::OkStatus());
    return once.ok() ? done : once;
  }

 private:
  std::shared_ptr<Faults> faults_;
  std::string name_;
  int64_t allocated_ = 0;
};

}  // namespace eta::testing
