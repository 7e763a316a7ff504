#include "calibration/pass_batch.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{250};

// What the engine's threads write; outlives the pass if a sink does.
struct Outcomes {
  explicit Outcomes(size_t count) : rows(count), ended(count) {}

  std::mutex mutex;
  std::condition_variable_any changed;
  // Guarded by mutex:
  std::vector<int32_t> rows;
  std::vector<std::optional<absl::StatusOr<PassOutcome>>> ended;
};

class OutcomeSink final : public PassSink {
 public:
  OutcomeSink(std::shared_ptr<Outcomes> outcomes, size_t index)
      : outcomes_(std::move(outcomes)), index_(index) {}

  void OnProgress(int32_t rows_done) override {
    const std::lock_guard lock(outcomes_->mutex);
    outcomes_->rows[index_] = rows_done;
  }
  void OnEnded(absl::StatusOr<PassOutcome> outcome) override {
    const std::lock_guard lock(outcomes_->mutex);
    outcomes_->ended[index_] = std::move(outcome);
    outcomes_->changed.notify_all();
  }

 private:
  std::shared_ptr<Outcomes> outcomes_;
  size_t index_;
};

class BatchRun {
 public:
  BatchRun(Engine& engine, const PassBatch& pass, const std::stop_token& stop)
      : engine_(engine),
        pass_(pass),
        stop_(stop),
        outcomes_(std::make_shared<Outcomes>(pass.count)) {}

  absl::Status Run() {
    while (taken_ < pass_.count) {
      if (stop_.stop_requested()) return End(absl::CancelledError("calibration: cancelled"));
      if (absl::Status status = SubmitMore(); !status.ok()) return End(std::move(status));
      std::optional<absl::StatusOr<PassOutcome>> outcome = AwaitNext();
      Report();
      if (!outcome) continue;
      const size_t index = taken_++;
      absl::Status status = outcome->status();
      if (status.ok()) status = pass_.take(index, **std::move(outcome));
      if (!status.ok()) return End(std::move(status));
    }
    Report();
    return absl::OkStatus();
  }

 private:
  absl::Status SubmitMore() {
    while (handles_.size() < pass_.count && handles_.size() - taken_ < pass_.window) {
      const size_t index = handles_.size();
      const absl::StatusOr<uint64_t> handle =
          engine_.SubmitPass(pass_.make(index), std::make_shared<OutcomeSink>(outcomes_, index));
      if (handle.ok()) {
        handles_.push_back(*handle);
      } else if (GetErrorDetail(handle.status()).reason == "QUEUE_FULL" && index > taken_) {
        break;
      } else {
        return handle.status();
      }
    }
    return absl::OkStatus();
  }

  // Of the next pass; none yet after a while, or when stop is requested.
  std::optional<absl::StatusOr<PassOutcome>> AwaitNext() {
    std::unique_lock lock(outcomes_->mutex);
    std::optional<absl::StatusOr<PassOutcome>>& next = outcomes_->ended[taken_];
    outcomes_->changed.wait_for(lock, stop_, kProgressInterval,
                                [&next] { return next.has_value(); });
    return std::exchange(next, std::nullopt);
  }

  void Report() {
    if (!pass_.progress) return;
    int64_t rows = 0;
    {
      const std::lock_guard lock(outcomes_->mutex);
      rows = std::accumulate(outcomes_->rows.begin(), outcomes_->rows.end(), rows);
    }
    pass_.progress(rows, taken_);
  }

  absl::Status End(absl::Status status) {
    for (size_t i = taken_; i < handles_.size(); ++i) engine_.Cancel(handles_[i]);
    std::unique_lock lock(outcomes_->mutex);
    for (size_t i = taken_; i < handles_.size(); ++i) {
      outcomes_->changed.wait(lock, [&] { return outcomes_->ended[i].has_value(); });
    }
    return status;
  }

  Engine& engine_;
  const PassBatch& pass_;
  const std::stop_token& stop_;
  const std::shared_ptr<Outcomes> outcomes_;
  std::vector<uint64_t> handles_;  // of the passes submitted so far
  size_t taken_ = 0;
};

}  // namespace

absl::Status RunPasses(Engine& engine, const PassBatch& pass, const std::stop_token& stop) {
  return BatchRun(engine, pass, stop).Run();
}

}  // namespace eta
