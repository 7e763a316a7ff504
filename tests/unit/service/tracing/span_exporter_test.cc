// Batches, what is lost and counted, and the end, with a collector that does what the test says.
#include "service/tracing/span_exporter.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process/log_pipe.h"
#include "tests/testing/service/span_reading.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::SizeIs;

using SpanBatch = otlp::collector::trace::v1::ExportTraceServiceRequest;
using SendKind = SendOutcome::Kind;

// What the sender was given, and what it answers.
class FakeCollector {
 public:
  std::unique_ptr<SpanSender> NewSender() { return std::make_unique<Sender>(*this); }

  void Answer(const SendOutcome& outcome) {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
  }
  // Batches are answered when Release is called, or their time is over.
  void Hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  // The number of spans of each batch, once there are so many batches; of those that there are
  // after 10 s.
  std::vector<size_t> Await(size_t batches) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(10), [&] { return sizes_.size() >= batches; });
    return sizes_;
  }
  std::vector<Clock::time_point> Times() {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  class Sender final : public SpanSender {
   public:
    explicit Sender(FakeCollector& collector) : collector_(collector) {}
    SendOutcome Send(const SpanBatch& batch, Clock::time_point deadline) override {
      std::unique_lock lock(collector_.mutex_);
      collector_.sizes_.push_back(testing::SpansOf(batch).size());
      collector_.times_.push_back(Clock::now());
      collector_.changed_.notify_all();
      const bool answered = collector_.changed_.wait_until(
          lock, deadline, [this] { return !collector_.held_ || cancelled_; });
      if (cancelled_ || !answered) return {.kind = SendKind::kTryAgain, .error = "too late"};
      return collector_.outcome_;
    }
    void Cancel() override {
      const std::lock_guard lock(collector_.mutex_);
      cancelled_ = true;
      collector_.changed_.notify_all();
    }

   private:
    FakeCollector& collector_;
    bool cancelled_ = false;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  SendOutcome outcome_;
  bool held_ = false;
  std::vector<size_t> sizes_;
  std::vector<Clock::time_point> times_;
};

class SpanExporterTest : public ::testing::Test {
 protected:
  void Start(const SpanExporterOptions& options) {
    exporter_.emplace(SpanSource{.model = "tiny"}, collector_.NewSender(), Log::Nowhere(), options);
  }
  // Ends so many calls, of one span each.
  void EndCalls(int count, bool sampled = true) {
    CallRecord record{.method = "Stats", .trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"};
    record.span_id = "b7ad6b7169203331";
    record.sampled = sampled;
    for (int i = 0; i < count; ++i) exporter_->OnCallEnd(record);
  }
  // The counts, once `done` holds of them; as they are after 10 s.
  SpanCounts AwaitCounts(const std::function<bool(const SpanCounts&)>& done) {
    for (int i = 0; i < 5000 && !done(exporter_->Counts()); ++i) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    return exporter_->Counts();
  }
  int64_t Lost(SpanLoss loss) { return exporter_->Counts().Of(loss); }

  FakeCollector collector_;
  std::optional<SpanExporter> exporter_;
};

constexpr milliseconds kNever{3'600'000};

TEST_F(SpanExporterTest, ABatchGoesWhenItIsFull) {
  Start({.max_batch = 4, .interval = kNever});
  EndCalls(9);
  EXPECT_THAT(collector_.Await(2), ElementsAre(4, 4)) << "the ninth waits for more";
  const SpanCounts counts = AwaitCounts([](const SpanCounts& now) { return now.sent == 8; });
  EXPECT_EQ(counts.sent, 8);
}

TEST_F(SpanExporterTest, OrWhenItsFirstSpanHasWaitedLongEnough) {
  Start({.max_batch = 512, .interval = milliseconds(200)});
  const auto begin = Clock::now();
  EndCalls(3);
  EXPECT_THAT(collector_.Await(1), ElementsAre(3));
  EXPECT_GE(collector_.Times()[0] - begin, milliseconds(200));
}

TEST_F(SpanExporterTest, ACallOfMoreSpansThanABatchIsABatch) {
  Start({.max_batch = 3, .interval = kNever});
  CallRecord record{.method = "Generate", .trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"};
  record.sampled = record.submitted = true;
  record.outcome.timing = {.queue = milliseconds(1), .first_token = milliseconds(2)};
  exporter_->OnCallEnd(record);
  EXPECT_THAT(collector_.Await(1), ElementsAre(4));
}

TEST_F(SpanExporterTest, OnlySampledTracesAreSent) {
  Start({.max_batch = 1, .interval = kNever});
  EndCalls(3, /*sampled=*/false);
  exporter_->OnCallEnd({.method = "Stats"});
  EndCalls(1);
  EXPECT_THAT(collector_.Await(1), ElementsAre(1));
  exporter_->Finish(seconds(10));
  EXPECT_EQ(exporter_->Counts().sent, 1);
  EXPECT_EQ(exporter_->Counts().lost, SpanCounts().lost);
}

TEST_F(SpanExporterTest, WhatDoesNotFitIsLostAndCountedAndNobodyWaits) {
  collector_.Hold();
  Start({.max_waiting = 5, .max_batch = 2, .interval = kNever, .patience = seconds(60)});
  EndCalls(2);
  collector_.Await(1);  // these are on their way, and do not come back
  const auto begin = Clock::now();
  EndCalls(5 + 7);
  EXPECT_LT(Clock::now() - begin, seconds(10));
  EXPECT_EQ(Lost(SpanLoss::kQueueFull), 7);
  collector_.Release();
  EXPECT_THAT(collector_.Await(3), ElementsAre(2, 2, 2));
  exporter_->Finish(seconds(10));
  EXPECT_EQ(exporter_->Counts().sent, 7);
}

TEST_F(SpanExporterTest, ABatchIsTriedAgainWithLongerPausesAndThenLost) {
  collector_.Answer({.kind = SendKind::kTryAgain, .error = "away"});
  Start({.max_batch = 2, .interval = kNever, .tries = 3, .pause = milliseconds(40)});
  EndCalls(2);
  EXPECT_THAT(collector_.Await(3), ElementsAre(2, 2, 2));
  const SpanCounts counts =
      AwaitCounts([](const SpanCounts& now) { return now.Of(SpanLoss::kUnanswered) > 0; });
  EXPECT_EQ(counts.Of(SpanLoss::kUnanswered), 2);
  EXPECT_EQ(counts.sent, 0);
  const std::vector<Clock::time_point> times = collector_.Times();
  EXPECT_GE(times[1] - times[0], milliseconds(20)) << "half a pause at least";
  EXPECT_GE(times[2] - times[1], milliseconds(40));

  collector_.Answer({});
  EndCalls(2);
  EXPECT_THAT(collector_.Await(4), SizeIs(4)) << "what comes after it is sent";
}

TEST_F(SpanExporterTest, TheCollectorSaysWhenToComeBack) {
  collector_.Answer({.kind = SendKind::kTryAgain, .retry_after = milliseconds(150)});
  Start({.max_batch = 1, .interval = kNever, .pause = milliseconds(1)});
  EndCalls(1);
  collector_.Await(2);
  const std::vector<Clock::time_point> times = collector_.Times();
  ASSERT_THAT(times.size(), Gt(1u));
  EXPECT_GE(times[1] - times[0], milliseconds(150));
}

TEST_F(SpanExporterTest, WhatIsRefusedIsNotTriedAgain) {
  collector_.Answer({.kind = SendKind::kRefused, .error = "who are you?"});
  Start({.max_batch = 2, .interval = kNever, .pause = milliseconds(1)});
  EndCalls(2);
  AwaitCounts([](const SpanCounts& now) { return now.Of(SpanLoss::kRefused) == 2; });
  collector_.Answer({.rejected = 1});
  EndCalls(2);
  const SpanCounts counts = AwaitCounts([](const SpanCounts& now) { return now.sent == 1; });
  EXPECT_EQ(counts.Of(SpanLoss::kRefused), 3) << "of the other batch it took a part";
  EXPECT_THAT(collector_.Await(2), ElementsAre(2, 2));
  collector_.Answer({.rejected = 1000});
  EndCalls(2);
  EXPECT_EQ(AwaitCounts([](const SpanCounts& now) {
              return now.Of(SpanLoss::kRefused) > 3;
            }).Of(SpanLoss::kRefused),
            5)
      << "no more than it was sent";
}

TEST_F(SpanExporterTest, TheEndSendsWhatWaits) {
  Start({.max_batch = 4, .interval = kNever});
  EndCalls(3);
  exporter_->Finish(seconds(10));
  EXPECT_THAT(collector_.Await(1), ElementsAre(3));
  EXPECT_EQ(exporter_->Counts().sent, 3);
  EndCalls(1);
  EXPECT_EQ(Lost(SpanLoss::kShutdown), 1) << "after the end";
}

TEST_F(SpanExporterTest, TheEndWaitsForNoPause) {
  collector_.Answer({.kind = SendKind::kTryAgain});
  Start({.max_batch = 2, .interval = kNever, .pause = kNever});
  EndCalls(2);
  collector_.Await(1);
  collector_.Answer({});
  exporter_->Finish(seconds(10));
  EXPECT_EQ(exporter_->Counts().sent, 2);
}

TEST_F(SpanExporterTest, TheEndIsBoundedAndCountsWhatIsLeft) {
  collector_.Hold();
  Start({.max_batch = 2, .interval = kNever, .patience = kNever});
  EndCalls(5);
  collector_.Await(1);
  const auto begin = Clock::now();
  exporter_->Finish(milliseconds(100));
  EXPECT_LT(Clock::now() - begin, seconds(10));
  EXPECT_EQ(exporter_->Counts().sent, 0);
  EXPECT_EQ(Lost(SpanLoss::kShutdown), 5);
}

TEST_F(SpanExporterTest, TroubleIsToldOnceAndThatItIsOver) {
  testing::LogPipe pipe;
  std::optional<Log> log;
  log.emplace(LogOptions{.fd = pipe.writer()});
  collector_.Answer({.kind = SendKind::kTryAgain, .error = "no route"});
  exporter_.emplace(SpanSource{.model = "tiny"}, collector_.NewSender(), *log,
                    SpanExporterOptions{
                        .max_batch = 1, .interval = kNever, .tries = 2, .pause = milliseconds(1)});
  EndCalls(2);
  collector_.Await(4);
  collector_.Answer({});
  EndCalls(2);
  collector_.Await(6);
  exporter_->Finish(seconds(10));
  exporter_.reset();
  std::vector<std::string> events;
  for (const std::string& line : pipe.ReadRest(log)) {
    const auto json = nlohmann::json::parse(line);
    events.push_back(json["event"]);
    if (events.size() > 1) continue;
    EXPECT_THAT(std::string(json["message"]), ::testing::HasSubstr("no route"));
  }
  EXPECT_THAT(events, ElementsAre("collector_trouble", "collector_ok"));
}

}  // namespace
}  // namespace eta
