#include "engine/front/dispatcher.h"

#include <chrono>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/front/submission_queue.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Dispatcher::Dispatcher(Backend& backend, Model& model, const KvCache& cache,
                       const BatcherOptions& options, Observer* observer, KvEventRecorder* recorder)
    : max_step_tokens_(options.max_step_tokens),
      pool_(cache.num_blocks(), recorder),
      batcher_(model, cache, pool_, options, observer),
      pass_batch_(model, cache),
      passes_(backend, pass_batch_, pool_, max_step_tokens_) {}

void Dispatcher::Cancel(uint64_t handle) {
  if (!batcher_.Cancel(handle)) passes_.Cancel(handle);
}

void Dispatcher::FailAll(const absl::Status& status) {
  batcher_.FailAll(status);
  passes_.FailAll(status);
}

void Dispatcher::Lose(const absl::Status& status) {
  batcher_.Lose(status, DeviceLost("the device has failed before this request could start"));
  passes_.FailAll(status);
}

void Dispatcher::Abandon() {
  batcher_.Abandon();
  passes_.Abandon();
}

absl::StatusOr<bool> Dispatcher::Step(Clock::time_point now) {
  absl::StatusOr<bool> ran = RunNext(now);
  if (!ran.ok()) {
    Lose(MakeError(absl::StatusCode::kInternal, "the device failed during a step",
                   {.reason = "DEVICE_ERROR"}));
  }
  return ran;
}

absl::StatusOr<bool> Dispatcher::RunNext(Clock::time_point now) {
  if (ETA_FAILPOINT(kEngineStep)) return absl::InternalError("illegal memory access");
  batcher_.Expire(now);
  StepPlan plan = batcher_.Plan();
  while (plan.short_of_blocks && passes_.GiveBlocks()) plan = batcher_.Plan();

  const bool foreground = plan.has_rows();
  if (foreground && !passes_.empty()) {
    const int32_t max_rows = pacer_.Allowance(max_step_tokens_);
    if (max_rows > 0) {
      batcher_.Settle();
      plan = batcher_.Plan();
      const auto ran = RunPasses(max_rows, plan);
      if (!ran.ok() || *ran) return ran;
    }
  }
  ASSIGN_OR_RETURN(const auto seconds, batcher_.Run(plan, now));
  if (seconds > 0.0) pacer_.MeasureForeground(seconds);
  return foreground ? true : RunPasses(pacer_.AllowanceAlone(max_step_tokens_), plan);
}

absl::StatusOr<bool> Dispatcher::RunPasses(int32_t max_rows, const StepPlan& plan) {
  StepReport report;
  const Clock::time_point begin = Clock::now();
  ASSIGN_OR_RETURN(const auto rows, passes_.Run(max_rows, plan.spare_blocks));
  if (rows == 0) return false;
  report.duration = Clock::now() - begin;
  report.pass_rows = rows;
  pacer_.MeasureBackground(rows, Seconds(report.duration), plan.has_rows());
  batcher_.Report(report);
  return true;
}

}  // namespace eta
