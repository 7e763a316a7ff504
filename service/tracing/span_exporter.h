// Sends the spans of calls that ended, in batches, from a thread of its own.
//
// No call waits for it. Calls that ended wait in a bounded queue; what does not fit is lost and
// counted. A batch that the collector does not take is tried again, a few times, with longer and
// longer pauses; then it is lost, so that what comes after it does not grow old behind it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "engine/base/threads/loop_thread.h"
#include "service/log/log.h"
#include "service/telemetry/call_record.h"
#include "service/tracing/call_spans.h"
#include "service/tracing/span_counts.h"
#include "service/tracing/span_sender.h"

namespace eta {

struct ServerOptions;

struct SpanExporterOptions {
  size_t max_waiting = 2048;                   // calls
  int max_batch = 512;                         // spans
  std::chrono::milliseconds interval{5000};    // the longest that spans wait for a full batch
  std::chrono::milliseconds patience{10'000};  // with one batch
  int tries = 5;                               // of one batch
  std::chrono::milliseconds pause{1000};  // after the first one that failed; then twice as long
};

// Thread-safe.
class SpanExporter final : public CallObserver {
 public:
  // `log` must outlive it.
  SpanExporter(SpanSource source, std::unique_ptr<SpanSender> sender, Log& log,
               const SpanExporterOptions& options = {});
  // What still waits is lost.
  ~SpanExporter() override;
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  // Of a call whose trace is sampled.
  void OnCallEnd(const CallRecord& record) override;

  // Sends what waits, once, and ends: returns when all of it has been tried, after `patience` at
  // the latest. What comes later is lost.
  void Finish(std::chrono::milliseconds patience);

  SpanCounts Counts() const;

 private:
  struct Waiting {
    TracedCall call;
    int spans = 0;
    Clock::time_point due;
  };

  // What the thread does: sends what is due, and says when it has something to do again.
  Clock::time_point Work();
  // Moves what is due into the batch; false: nothing is, before `next`.
  bool TakeBatch(Clock::time_point& next);
  // Sends the batch; false: it is to be tried again, at `retry_at_`.
  bool SendBatch();
  void EndBatch(const SendOutcome& outcome);
  void Lose(SpanLoss why, int64_t spans) REQUIRES(mutex_) { counts_.Of(why) += spans; }
  // Says once that there is trouble with the collector, and once that it is over.
  void Tell(const SendOutcome& outcome);

  const SpanWriter writer_;
  const std::unique_ptr<SpanSender> sender_;
  Log& log_;
  const SpanExporterOptions options_;

  // Of the thread:
  opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest batch_;
  int failures_ = 0;  // of this batch
  Clock::time_point retry_at_;
  bool well_ = true;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  int64_t waiting_spans_ GUARDED_BY(mutex_) = 0;
  int64_t in_batch_ GUARDED_BY(mutex_) = 0;                                    // spans
  Clock::time_point finish_by_ GUARDED_BY(mutex_) = Clock::time_point::max();  // max(): it goes on
  bool ended_ GUARDED_BY(mutex_) = false;
  SpanCounts counts_ GUARDED_BY(mutex_);

  LoopThread thread_;  // last: it uses the others
};

// An exporter to options.otlp_endpoint of a server that serves `model`; null without one.
std::unique_ptr<SpanExporter> MakeSpanExporter(const ServerOptions& options,
                                               const std::string& model, Log& log);

}  // namespace eta
