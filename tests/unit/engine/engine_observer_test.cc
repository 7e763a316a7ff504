// What the engine tells its observer: every row and token once, and the same numbers as the
// answers.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>

#include "engine/request/request_validation.h"
#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

// Adds up the steps of each request.
class Sums : public Observer {
 public:
  struct OfRequest {
    int64_t tokens = 0;
    int64_t first_tokens = 0;
    std::chrono::nanoseconds first_latency{0};
    std::chrono::nanoseconds later_latency{0};
    AttentionSums attention;
    bool ended = false;
    FinishedEvent outcome;
  };

  explicit Sums(const ModelConfig& config) : config_(config) {}

  void OnStep(const StepReport& report) override {
    const std::lock_guard lock(mutex_);
    preemptions_ += report.preemptions;
    if (report.prefill_rows + report.decode_rows == 0) {
      EXPECT_EQ(report.duration.count(), 0);
      return;
    }
    EXPECT_EQ(report.num_rows, report.prefill_rows + report.decode_rows);
    EXPECT_GE(report.sequences, 1);
    EXPECT_LE(report.sequences, report.num_rows);
    EXPECT_LE(std::ssize(report.tokens), report.sequences + report.drafts.accepted);
    EXPECT_EQ(report.decode.empty(), report.tokens_attended == nullptr);
    for (const TokenReport& token : report.tokens) {
      OfRequest& sums = requests_[token.request->id];
      ++sums.tokens;
      sums.first_tokens += token.first ? 1 : 0;
      (token.first ? sums.first_latency : sums.later_latency) += token.latency;
    }
    for (const DecodeRowReport& row : report.decode) Add(report, row);
  }

  void OnRequestEnd(const Request& request, const absl::Status&,
                    const FinishedEvent& outcome) override {
    const std::lock_guard lock(mutex_);
    OfRequest& sums = requests_[request.id];
    EXPECT_FALSE(sums.ended) << request.id;
    sums.ended = true;
    sums.outcome = outcome;
  }

  OfRequest Of(const std::string& id) {
    const std::lock_guard lock(mutex_);
    return requests_[id];
  }
  int64_t preemptions() {
    const std::lock_guard lock(mutex_);
    return preemptions_;
  }

 private:
  void Add(const StepReport& report, const DecodeRowReport& row) {
    OfRequest& sums = requests_[row.request->id];
    AttentionSums& attention = sums.attention;
    ++attention.decode_rows;
    attention.index_bytes_read += row.sums.index_bytes_read;
    int64_t keys_attended = 0;
    int64_t keys_read = 0;
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const int32_t* attended =
          report.tokens_attended + (layer * report.num_rows + row.row) * config_.num_query_heads;
      const int32_t* read =
          report.tokens_read + (layer * report.num_rows + row.row) * config_.num_kv_heads;
      keys_attended += std::accumulate(attended, attended + config_.num_query_heads, int64_t{0});
      keys_read += std::accumulate(read, read + config_.num_kv_heads, int64_t{0});
      attention.keys_eligible += int64_t{row.kv_len} * config_.num_query_heads;
      attention.keys_cached += int64_t{row.kv_len} * config_.num_kv_heads;
    }
    EXPECT_EQ(row.sums.keys_attended, keys_attended);
    EXPECT_EQ(row.sums.keys_read, keys_read);
    attention.keys_attended += keys_attended;
    attention.keys_read += keys_read;
  }

  const ModelConfig config_;
  std::mutex mutex_;
  std::map<std::string, OfRequest> requests_;
  int64_t preemptions_ = 0;
};

// Requests of every mode, of ragged lengths, each under an id of its own.
std::vector<Request> Mixed(const ModelConfig& config) {
  std::vector<Request> requests;
  for (int i = 0; i < 15; ++i) {
    Request request =
        Greedy(Prompt(20 + (i * 61) % 111, static_cast<uint32_t>(i)), 40 + 19 * (i % 5));
    request.id = "request-" + std::to_string(i);
    if (i % 3 == 0) request.attention.mode = AttentionMode::kFull;
    if (i % 3 == 1) request.attention.mode = AttentionMode::kDynamic;
    if (i % 3 == 2) request.attention = Frozen(config, "frozen");
    requests.push_back(std::move(request));
  }
  return requests;
}

class ObserverTest : public ::testing::Test {
 protected:
  ObserverTest() : config_(Start(OptionsFor(model_))->info().config), sums_(config_) {}

  void ExpectSumsOf(const std::string& id, const FinishedEvent& outcome) {
    const Sums::OfRequest sums = sums_.Of(id);
    const AttentionSums& got = sums.attention;
    const AttentionSums& want = outcome.attention;
    EXPECT_EQ(sums.tokens, outcome.output_tokens) << id;
    EXPECT_EQ(got.decode_rows, want.decode_rows) << id;
    EXPECT_EQ(got.keys_attended, want.keys_attended) << id;
    EXPECT_EQ(got.keys_eligible, want.keys_eligible) << id;
    EXPECT_EQ(got.keys_read, want.keys_read) << id;
    EXPECT_EQ(got.keys_cached, want.keys_cached) << id;
    EXPECT_EQ(got.index_bytes_read, want.index_bytes_read) << id;
    EXPECT_EQ(sums.first_latency, outcome.timing.first_token) << id;
    EXPECT_EQ(sums.later_latency, outcome.timing.decode) << id;
  }

  TinyModel model_;
  ModelConfig config_;
  Sums sums_;
};

TEST_F(ObserverTest, TheStepsAddUpToTheAnswers) {
  const auto engine = Start(OptionsFor(model_), &sums_);
  const auto answers = AskTogether(*engine, Mixed(config_));
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].finished);
    const std::string id = "request-" + std::to_string(i);
    EXPECT_EQ(sums_.Of(id).first_tokens, 1);
    ExpectSumsOf(id, *answers[i].finished);
  }
}

TEST_F(ObserverTest, RowsOfAReplayCountOnceAndEveryPreemptionIsReported) {
  const auto engine = Start(WithBlocks(OptionsFor(model_), 20), &sums_);
  const auto answers = AskTogether(*engine, Mixed(config_));
  int64_t preemptions = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].finished);
    preemptions += answers[i].finished->preemptions;
    ExpectSumsOf("request-" + std::to_string(i), *answers[i].finished);
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(sums_.preemptions(), preemptions);
}

TEST_F(ObserverTest, ACancelledAnswerIsCountedAsFarAsItCame) {
  const auto engine = Start(OptionsFor(model_), &sums_);
  Request request = Greedy(Prompt(100, 1), 500);
  request.id = "cancelled";
  auto recorder = std::make_shared<Recorder>();
  const auto handle = Submit(*engine, std::move(request), recorder).value();
  recorder->WaitForIds(10);
  engine->Cancel(handle);
  const auto answer = recorder->Wait();
  EXPECT_TRUE(absl::IsCancelled(answer.status));
  EXPECT_GE(answer.so_far.output_tokens, 10);
  ExpectSumsOf("cancelled", answer.so_far);
}

// Looks, at the last event, whether the observer has been told.
class LateReader : public Recorder {
 public:
  explicit LateReader(Sums& sums) : sums_(sums) {}
  void OnFinished(FinishedEvent event) override {
    const Sums::OfRequest sums = sums_.Of("late");
    counted = sums.ended && sums.tokens == event.output_tokens &&
              sums.attention.keys_read == event.attention.keys_read;
    Recorder::OnFinished(std::move(event));
  }
  bool counted = false;

 private:
  Sums& sums_;
};

TEST_F(ObserverTest, AnAnswerIsCountedBeforeItsLastEvent) {
  const auto engine = Start(OptionsFor(model_), &sums_);
  Request request = Greedy(Prompt(100, 1), 20);
  request.id = "late";
  const auto reader = std::make_shared<LateReader>(sums_);
  ASSERT_TRUE(Submit(*engine, std::move(request), reader).ok());
  reader->Wait();
  EXPECT_TRUE(reader->counted);
}

}  // namespace
}  // namespace eta::testing
