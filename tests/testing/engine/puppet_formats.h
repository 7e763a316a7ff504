// A compiler of formats that takes as long as the test wants. What it has compiled lets every token
// through; the puppet engine draws none by itself. Thread-safe.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/format/format_compiler.h"

namespace eta::testing {

class PuppetGuide final : public AnswerGuide {
 public:
  bool Fill(std::span<uint32_t> /*mask*/) override { return false; }
  bool Accept(int32_t /*token*/) override { return true; }
  void Rollback(int32_t /*count*/) override {}
  bool Complete() const override { return true; }
  absl::Status failure() const override { return absl::OkStatus(); }
};

class PuppetFormat final : public CompiledFormat {
 public:
  explicit PuppetFormat(AnswerFormat format) : format_(std::move(format)) {}

  const AnswerFormat& format() const override { return format_; }
  std::unique_ptr<AnswerGuide> NewGuide(bool) const override {
    return std::make_unique<PuppetGuide>();
  }
  absl::Status Check(std::string_view /*answer*/) const override { return absl::OkStatus(); }
  size_t bytes() const override { return sizeof(*this); }

 private:
  const AnswerFormat format_;
};

class PuppetFormats final : public FormatCompiler {
 public:
  ~PuppetFormats() override { Release(); }

  // Compile waits from now on, until Release or its deadline.
  void Hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  // Compile fails with this from now on; OK: it does not.
  void Refuse(absl::Status status) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(status);
  }
  // True once so many calls are being compiled; false after 10 s.
  bool AwaitCompiling(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return compiling_ == count; });
  }
  // How often Compile was called.
  int compiled() const {
    const std::lock_guard lock(mutex_);
    return compiled_;
  }

  std::shared_ptr<const CompiledFormat> Find(const std::string& tenant,
                                             const AnswerFormat& format) override {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& kept) {
      return kept.first == tenant && kept.second->format() == format;
    });
    return found == kept_.end() ? nullptr : found->second;
  }

  absl::StatusOr<std::shared_ptr<const CompiledFormat>> Compile(
      const std::string& tenant, const AnswerFormat& format, Clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    ++compiled_;
    ++compiling_;
    changed_.notify_all();
    const bool in_time = changed_.wait_until(lock, deadline, [this] { return !held_; });
    --compiling_;
    changed_.notify_all();
    if (!in_time) {
      return MakeError(absl::StatusCode::kDeadlineExceeded, "format: takes too long to compile",
                       {.reason = "FORMAT_TOO_SLOW"});
    }
    if (!refusal_.ok()) return refusal_;
    auto compiled = std::make_shared<const PuppetFormat>(format);
    kept_.emplace_back(tenant, compiled);
    return compiled;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  bool held_ = false;
  absl::Status refusal_;
  int compiling_ = 0;
  int compiled_ = 0;
  std::vector<std::pair<std::string, std::shared_ptr<const CompiledFormat>>> kept_;
};

}  // namespace eta::testing
