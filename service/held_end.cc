#include "service/held_end.h"

#include <chrono>
#include <optional>
#include <utility>

namespace eta {
namespace {

using std::chrono::system_clock;

// Half of what is left of the call's time; of a call without a deadline as long as is wished.
Clock::duration TimeToWait(const grpc::ServerContextBase& context) {
  const system_clock::time_point deadline = context.deadline();
  if (deadline == system_clock::time_point::max()) return Clock::duration::max();
  return std::chrono::duration_cast<Clock::duration>(deadline - system_clock::now()) / 2;
}

// Who has left, and who is to ask another server, is not held.
bool MayWait(const absl::Status& status, const CallRecord& record) {
  return !status.ok() && !absl::IsCancelled(status) && !absl::IsUnavailable(status) &&
         !record.tenant.empty();
}

}  // namespace

void HeldEnd::Begin(const grpc::ServerContextBase& context, const absl::Status& status,
                    CallRecord& record, std::function<void()> end) {
  if (!MayWait(status, record)) return end();
  auto hold = pacer_.Next(*Tenant::Parse(record.tenant), message_bytes_, TimeToWait(context));
  if (!hold) return end();
  std::unique_lock lock(mutex_);
  if (cut_) {
    lock.unlock();
    return end();
  }
  waits_ = true;
  hold_.emplace(*std::move(hold));
  const Clock::time_point begin = Clock::now();
  const auto due = std::chrono::ceil<std::chrono::microseconds>(hold_->wait());
  alarm_.Set(system_clock::now() + due, [this, &record, begin, end = std::move(end)](bool) mutable {
    { const std::lock_guard begun(mutex_); }  // the call may not end while Begin still runs
    const auto last = std::move(end);         // else the call and its alarm keep each other
    hold_.reset();
    record.held = Clock::now() - begin;
    last();
  });
}

void HeldEnd::Cut() {
  {
    const std::lock_guard lock(mutex_);
    cut_ = true;
    if (!waits_) return;
  }
  alarm_.Cancel();
}

}  // namespace eta
