#include "service/tracing/span_exporter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "service/tracing/otlp_channel.h"
#include "service/wire/request_id.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using Kind = SendOutcome::Kind;

constexpr int kMostDoublings = 5;

// A half to all of it, so that the servers of a fleet do not return to their collector together.
milliseconds Jittered(milliseconds pause) {
  const auto half = static_cast<uint64_t>(pause.count() / 2);
  return milliseconds(static_cast<int64_t>(half + DrawId() % (half + 1)));
}

// A random UUID (RFC 9562, version 4).
std::string NewInstance() {
  const uint64_t high = DrawId();
  const uint64_t low = DrawId();
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%012x", high >> 32, (high >> 16) & 0xffff,
                         high & 0xfff, 0x8000 | ((low >> 48) & 0x3fff), low & 0xffffffffffff);
}

}  // namespace

SpanExporter::SpanExporter(SpanSource source, std::unique_ptr<SpanSender> sender, Log& log,
                           const SpanExporterOptions& options)
    : writer_(std::move(source)),
      sender_(std::move(sender)),
      log_(log),
      options_(options),
      thread_("spans", [this] { return Work(); }) {}

SpanExporter::~SpanExporter() {
  Finish(milliseconds(0));
}

void SpanExporter::OnCallEnd(const CallRecord& record) {
  if (record.trace_id.empty() || !record.sampled) return;
  const int spans = SpanCount(record);
  Waiting waiting{.call = {.record = record, .end = std::chrono::system_clock::now()},
                  .spans = spans,
                  .due = Clock::now() + options_.interval};
  waiting.call.record.outcome.layers = {};  // no span has them
  bool wake = false;
  {
    const MutexLock lock(mutex_);
    if (ended_) return Lose(SpanLoss::kShutdown, spans);
    if (waiting_.size() >= options_.max_waiting) return Lose(SpanLoss::kQueueFull, spans);
    const bool was_short = waiting_spans_ < options_.max_batch;
    waiting_spans_ += spans;
    wake = waiting_.empty() || (was_short && waiting_spans_ >= options_.max_batch);
    waiting_.push_back(std::move(waiting));
  }
  if (wake) thread_.Wake();
}

void SpanExporter::Finish(milliseconds patience) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    finish_by_ = Clock::now() + patience;
  }
  thread_.Wake();
  {
    MutexLock lock(mutex_);
    changed_.WaitFor(lock, patience,
                     [this]() REQUIRES(mutex_) { return waiting_.empty() && in_batch_ == 0; });
    ended_ = true;
  }
  sender_->Cancel();
  thread_.Stop();
  const MutexLock lock(mutex_);
  Lose(SpanLoss::kShutdown, waiting_spans_ + in_batch_);
  waiting_.clear();
  waiting_spans_ = in_batch_ = 0;
}

SpanCounts SpanExporter::Counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

Clock::time_point SpanExporter::Work() {
  while (true) {
    Clock::time_point next = LoopThread::kWhenWoken;
    if (!TakeBatch(next)) return next;
    if (!SendBatch()) return retry_at_;
  }
}

bool SpanExporter::TakeBatch(Clock::time_point& next) {
  std::vector<Waiting> taken;
  {
    const MutexLock lock(mutex_);
    if (ended_) return false;
    if (in_batch_ > 0) return true;
    if (waiting_.empty()) return false;
    const bool finishing = finish_by_ != Clock::time_point::max();
    next = waiting_.front().due;
    if (!finishing && waiting_spans_ < options_.max_batch && Clock::now() < next) return false;
    while (!waiting_.empty() &&
           (taken.empty() || in_batch_ + waiting_.front().spans <= options_.max_batch)) {
      taken.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      in_batch_ += taken.back().spans;
    }
    waiting_spans_ -= in_batch_;
  }
  batch_ = writer_.NewBatch();
  for (const Waiting& waiting : taken) writer_.Add(waiting.call, batch_);
  failures_ = 0;
  retry_at_ = Clock::time_point::min();
  return true;
}

bool SpanExporter::SendBatch() {
  Clock::time_point deadline = Clock::now() + options_.patience;
  bool last = failures_ + 1 >= options_.tries;
  {
    const MutexLock lock(mutex_);
    const bool finishing = finish_by_ != Clock::time_point::max();
    if (!finishing && Clock::now() < retry_at_) return false;
    deadline = std::min(deadline, finish_by_);
    last = last || finishing;
  }
  const SendOutcome outcome = sender_->Send(batch_, deadline);
  Tell(outcome);
  if (outcome.kind != Kind::kTryAgain || last) {
    EndBatch(outcome);
    return true;
  }
  const milliseconds pause =
      Jittered(options_.pause * (int64_t{1} << std::min(failures_++, kMostDoublings)));
  retry_at_ = Clock::now() + std::max(pause, outcome.retry_after.value_or(milliseconds(0)));
  return false;
}

void SpanExporter::EndBatch(const SendOutcome& outcome) {
  {
    const MutexLock lock(mutex_);
    if (outcome.kind == Kind::kTaken) {
      const int64_t rejected = std::clamp<int64_t>(outcome.rejected, 0, in_batch_);
      Lose(SpanLoss::kRefused, rejected);
      counts_.sent += in_batch_ - rejected;
    } else if (outcome.kind == Kind::kRefused) {
      Lose(SpanLoss::kRefused, in_batch_);
    } else {
      Lose(ended_ ? SpanLoss::kShutdown : SpanLoss::kUnanswered, in_batch_);
    }
    in_batch_ = 0;
  }
  changed_.NotifyAll();
}

void SpanExporter::Tell(const SendOutcome& outcome) {
  const bool well = outcome.kind == Kind::kTaken && outcome.rejected == 0;
  if (std::exchange(well_, well) == well) return;
  log_.Write(
      well ? LogEvent(LogLevel::kInfo, "collector_ok", "the collector takes spans again")
           : LogEvent(LogLevel::kWarning, "collector_trouble",
                      "--otlp_endpoint: the collector does not take spans: " + outcome.error));
}

std::unique_ptr<SpanExporter> MakeSpanExporter(const ServerOptions& options,
                                               const std::string& model, Log& log) {
  if (options.otlp_endpoint.empty()) return nullptr;
  return std::make_unique<SpanExporter>(
      SpanSource{.model = model, .version = ETA_VERSION, .instance = NewInstance()},
      std::make_unique<OtlpChannel>(options), log);
}

}  // namespace eta
