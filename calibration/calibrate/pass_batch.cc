#include "calibration/calibrate/pass_batch.h"

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/mutex.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{250};

// The data that the engine's threads write. It outlives the pass if a sink does.
struct Outcomes {
  explicit Outcomes(size_t count) : rows(count), ended(count) {}

  Mutex mutex;
  CondVar changed;
  std::vector<int32_t> rows GUARDED_BY(mutex);
  std::vector<std::optional<absl::StatusOr<PassOutcome>>> ended GUARDED_BY(mutex);
};

class OutcomeSink final : public PassSink {
 public:
  OutcomeSink(std::shared_ptr<Outcomes> outcomes, size_t index)
      : outcomes_(std::move(outcomes)), index_(index) {}

  void OnProgress(int32_t rows_done) override {
    const MutexLock lock(outcomes_->mutex);
    outcomes_->rows[index_] = rows_done;
  }
  void OnEnded(absl::StatusOr<PassOutcome> outcome) override {
    const MutexLock lock(outcomes_->mutex);
    outcomes_->ended[index_] = std::move(outcome);
    outcomes_->changed.NotifyAll();
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
        outcomes_(std::make_shared<Outcomes>(pass.count)),
        on_stop_(stop_, [outcomes = outcomes_] {
          const MutexLock lock(outcomes->mutex);  // so that whoever waits is not missed
          outcomes->changed.NotifyAll();
        }) {}

  absl::Status Run() {
    while (collected_ < pass_.count) {
      if (stop_.stop_requested()) return End(absl::CancelledError("calibration: cancelled"));
      if (absl::Status status = SubmitMore(); !status.ok()) return End(std::move(status));
      std::optional<absl::StatusOr<PassOutcome>> outcome = AwaitNext();
      Report();
      if (!outcome) continue;
      const size_t index = collected_++;
      absl::Status status = outcome->status();
      if (status.ok()) status = pass_.collect(index, **std::move(outcome));
      if (!status.ok()) return End(std::move(status));
    }
    Report();
    return absl::OkStatus();
  }

 private:
  absl::Status SubmitMore() {
    while (handles_.size() < pass_.count && handles_.size() - collected_ < pass_.window) {
      const size_t index = handles_.size();
      const absl::StatusOr<uint64_t> handle =
          engine_.SubmitPass(pass_.make(index), std::make_shared<OutcomeSink>(outcomes_, index));
      if (handle.ok()) {
        handles_.push_back(*handle);
      } else if (GetErrorDetail(handle.status()).reason == "QUEUE_FULL" && index > collected_) {
        break;
      } else {
        return handle.status();
      }
    }
    return absl::OkStatus();
  }

  // Waits for the outcome of the next pass. Nullopt after a while without one, or once stop is
  // requested.
  std::optional<absl::StatusOr<PassOutcome>> AwaitNext() {
    Outcomes& outcomes = *outcomes_;
    MutexLock lock(outcomes.mutex);
    std::optional<absl::StatusOr<PassOutcome>>& next = outcomes.ended[collected_];
    outcomes.changed.WaitFor(lock, kProgressInterval,
                             [this, &next] { return next.has_value() || stop_.stop_requested(); });
    return std::exchange(next, std::nullopt);
  }

  void Report() {
    if (!pass_.progress) return;
    int64_t rows = 0;
    {
      const MutexLock lock(outcomes_->mutex);
      rows = std::accumulate(outcomes_->rows.begin(), outcomes_->rows.end(), rows);
    }
    pass_.progress(rows, collected_);
  }

  absl::Status End(absl::Status status) {
    for (size_t i = collected_; i < handles_.size(); ++i) engine_.Cancel(handles_[i]);
    Outcomes& outcomes = *outcomes_;
    MutexLock lock(outcomes.mutex);
    for (size_t i = collected_; i < handles_.size(); ++i) {
      outcomes.changed.Wait(
          lock, [&]() REQUIRES(outcomes.mutex) { return outcomes.ended[i].has_value(); });
    }
    return status;
  }

  Engine& engine_;
  const PassBatch& pass_;
  const std::stop_token& stop_;
  const std::shared_ptr<Outcomes> outcomes_;
  const std::stop_callback<std::function<void()>> on_stop_;
  std::vector<uint64_t> handles_;  // of the passes submitted so far
  size_t collected_ = 0;
};

}  // namespace

absl::Status RunPasses(Engine& engine, const PassBatch& pass, const std::stop_token& stop) {
  return BatchRun(engine, pass, stop).Run();
}

}  // namespace eta
