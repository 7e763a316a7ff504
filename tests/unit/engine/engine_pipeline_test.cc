// Steps that are prepared while another one runs change nothing but when the host works: on a
// backend that defers, every event, every report and every schedule is what it is on one that does
// not; and most steps of a busy engine were prepared.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <random>

#include "engine/base/error.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/fake_format.h"
#include "tests/testing/engine/pass_recorder.h"
#include "tests/testing/engine/scripted_engine.h"
#include "tests/testing/engine/step_watch.h"
#include "tests/testing/kernels/deferring_backend.h"
#include "tests/testing/kernels/faulty_backend.h"
#include "tests/testing/process/long_run.h"

namespace eta::testing {
namespace {

using std::chrono::seconds;

// What is done to an engine, by the step before which it is done.
using Act = std::function<void(ScriptedEngine&, Faults&)>;
using Script = std::multimap<int, Act>;

Act Join(Request request) {
  return [request](ScriptedEngine& engine, Faults&) { engine.Submit(request); };
}
// The same with a deadline: before the step so many later.
Act JoinFor(Request request, int steps) {
  return [request, steps](ScriptedEngine& engine, Faults&) mutable {
    request.deadline = engine.now() + seconds(steps);
    engine.Submit(request);
  };
}
Act Leave(size_t handle) {
  return [handle](ScriptedEngine& engine, Faults&) { engine.Cancel(handle); };
}
Act Congest(size_t handle, bool congested) {
  return [=](ScriptedEngine& engine, Faults&) { engine.SetCongested(handle, congested); };
}
Act Fail(absl::Status status) {
  return [=](ScriptedEngine&, Faults& faults) { faults.FailNextFinish(status); };
}

// A greedy request for ids and text.
Request RequestOf(const std::string& id, int32_t prompt_tokens, int32_t max_tokens,
                  uint32_t seed = 1) {
  Request request = Greedy(Prompt(prompt_tokens, seed), max_tokens);
  request.id = id;
  return request;
}

// What an engine made of a script.
struct Outcome {
  std::vector<std::vector<std::string>> events;  // by request
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::string> reports;
  std::vector<std::string> schedule;  // after each step
  int32_t preemptions = 0;
};

// The CPU, or with ETA_TEST_BACKEND=cuda a GPU.
std::shared_ptr<Backend> Open() {
  const char* name = std::getenv("ETA_TEST_BACKEND");
  const bool cuda = name != nullptr && std::string_view(name) == "cuda";
  auto backend =
      MakeBackend({.name = cuda ? "cuda" : "cpu", .num_threads = 1, .compute = DType::kFloat32});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// Whose steps nobody prepares.
class PlainBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  bool defers() const override { return false; }
};

// The GPU defers, the CPU is made to.
std::shared_ptr<Backend> Deferring(std::shared_ptr<Backend> backend) {
  if (backend->defers()) return backend;
  return std::make_shared<DeferringBackend>(std::move(backend));
}

class Pipeline : public ::testing::Test {
 protected:
  ScriptedEngine::Options Options() const {
    return {.model_dir = model_.path(),
            .num_blocks = 64,
            .batcher = {.max_running = 6, .max_step_tokens = 48}};
  }

  // Until nothing is left.
  Outcome Play(const Script& script, const ScriptedEngine::Options& options, Backend& backend) {
    faults_->FailNextFinish(absl::OkStatus());
    ScriptedEngine engine(options, backend);
    Outcome outcome;
    const int last = script.rbegin()->first;
    for (int step = 0; step < 5000; ++step) {
      const auto [begin, end] = script.equal_range(step);
      for (auto act = begin; act != end; ++act) act->second(engine, *faults_);
      const auto stepped = engine.Step();
      const Batcher& batcher = engine.dispatcher().batcher();
      outcome.schedule.push_back(std::string(!stepped.ok() ? "lost"
                                             : *stepped    ? "ran"
                                                           : "rests") +
                                 ", running " + std::to_string(batcher.num_running()) +
                                 ", waiting " + std::to_string(batcher.queue().size()));
      if (!stepped.ok()) break;
      if (step > last && batcher.num_running() + batcher.queue().size() == 0) break;
    }
    EXPECT_EQ(engine.dispatcher().pool().num_used(), 0);
    for (size_t i = 0; i < engine.num_requests(); ++i) {
      outcome.events.push_back(engine.events(i));
      outcome.ids.push_back(engine.ids(i));
    }
    outcome.reports = engine.reports();
    outcome.preemptions = engine.preemptions();
    return outcome;
  }

  // Plays the script on both kinds of backend.
  Outcome ExpectTheSame(const Script& script, const ScriptedEngine::Options& options) {
    steps_->Clear();
    const Outcome plain = Play(script, options, plain_);
    Outcome deferred = Play(script, options, deferring_);
    EXPECT_EQ(plain.schedule, deferred.schedule);
    EXPECT_EQ(plain.reports, deferred.reports);
    EXPECT_EQ(plain.events.size(), deferred.events.size());
    for (size_t i = 0; i < plain.events.size(); ++i) {
      EXPECT_EQ(plain.events[i], deferred.events[i]) << "request " << i;
      EXPECT_FALSE(plain.events[i].empty()) << "request " << i;
    }
    EXPECT_EQ(steps_->misused, 0);
    return deferred;
  }
  Outcome ExpectTheSame(const Script& script) { return ExpectTheSame(script, Options()); }

  int prepared() const { return steps_->prepared; }
  int discarded() const { return steps_->discarded; }

  TinyModel model_;
  const std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  const std::shared_ptr<StepCounts> steps_ = std::make_shared<StepCounts>();
  // One, since a GPU's products are chosen by measurement.
  const std::shared_ptr<Backend> backend_ = Open();
  FaultyBackend plain_{std::make_shared<PlainBackend>(backend_), faults_};
  FaultyBackend deferring_{std::make_shared<StepWatch>(Deferring(backend_), steps_), faults_};
};

TEST_F(Pipeline, EveryStepOfAStreamButTheFirstIsPrepared) {
  ExpectTheSame({{0, Join(RequestOf("a", 20, 50))}});
  // The prompt's step draws the first token, 49 decode steps the others.
  EXPECT_EQ(prepared(), 48);
  EXPECT_EQ(discarded(), 0);
  EXPECT_EQ(steps_->launched, 50);
}

TEST_F(Pipeline, SixStreamsAreToo) {
  Script script;
  for (uint32_t i = 0; i < 6; ++i) {
    script.insert({0, Join(RequestOf("s" + std::to_string(i), 5, 60, i))});
  }
  ExpectTheSame(script);
  EXPECT_EQ(prepared(), 58);
  EXPECT_EQ(discarded(), 0);
}

TEST_F(Pipeline, MoreStreamsThanLogitsFitAtOnceAreToo) {
  ScriptedEngine::Options options = Options();
  options.num_blocks = 200;
  options.batcher = {.max_running = 70, .max_step_tokens = 140};
  Script script;
  for (uint32_t i = 0; i < 70; ++i) {
    script.insert({0, Join(RequestOf("s" + std::to_string(i), 2, 8, i))});
  }
  ExpectTheSame(script, options);
  EXPECT_EQ(prepared(), 6);
}

TEST_F(Pipeline, TheTokenThatEndsAnAnswerDiscardsTheStepAfterIt) {
  const Outcome whole =
      ExpectTheSame({{0, Join(RequestOf("a", 20, 40))}, {0, Join(RequestOf("b", 7, 60, 2))}});
  EXPECT_EQ(discarded(), 0);
  Request stops = RequestOf("a", 20, 40);
  stops.stopping.stop_ids = {whole.ids[0][12]};
  const Outcome cut = ExpectTheSame({{0, Join(stops)}, {0, Join(RequestOf("b", 7, 60, 2))}});
  EXPECT_EQ(discarded(), 1);
  EXPECT_LE(cut.ids[0].size(), 12u);
  EXPECT_EQ(cut.ids[1], whole.ids[1]);
}

TEST_F(Pipeline, WhoComesOrGoesDiscardsAndTheNextStepsArePreparedAgain) {
  const Script alone = {{0, Join(RequestOf("a", 20, 100))}};
  ExpectTheSame(alone);
  const int undisturbed = prepared();

  Script script = alone;
  script.insert({20, Join(RequestOf("b", 20, 100, 2))});
  ExpectTheSame(script);
  EXPECT_EQ(discarded(), 1);
  script.insert({40, Leave(1)});
  ExpectTheSame(script);
  EXPECT_EQ(discarded(), 2);
  EXPECT_GT(prepared(), undisturbed - 10);
}

TEST_F(Pipeline, WhoWaitsForASlotDisturbsNobody) {
  ScriptedEngine::Options options = Options();
  options.batcher.max_running = 1;
  Script script = {{0, Join(RequestOf("a", 20, 60))}};
  for (int i = 1; i < 4; ++i) script.insert({10 * i, Join(RequestOf("w", 9, 5, 7))});
  script.insert({45, Leave(2)});
  ExpectTheSame(script, options);
  EXPECT_EQ(discarded(), 1) << "only the one who left the queue settles what there is";
}

TEST_F(Pipeline, ADeadlineBetweenTwoStepsIsKept) {
  ExpectTheSame({{0, Join(RequestOf("a", 20, 100))}, {3, JoinFor(RequestOf("b", 20, 100, 2), 25)}});
  EXPECT_EQ(discarded(), 2);
}

TEST_F(Pipeline, WaitsForSlotsArePredictedAlike) {
  ScriptedEngine::Options options = Options();
  options.batcher.max_running = 1;
  const Outcome outcome = ExpectTheSame({{0, Join(RequestOf("a", 20, 30))},
                                         {0, Join(RequestOf("b", 20, 40))},
                                         {40, JoinFor(RequestOf("refused", 20, 1, 2), 20)},
                                         {40, JoinFor(RequestOf("waits", 20, 1, 3), 21)}},
                                        options);
  EXPECT_EQ(outcome.ids[2].size(), 0u);
  EXPECT_EQ(outcome.ids[3].size(), 0u);
  EXPECT_TRUE(outcome.events[2].at(0).starts_with("failed: the deadline is shorter"));
  EXPECT_TRUE(outcome.events[3].at(0).starts_with("failed: deadline: passed while"));
}

TEST_F(Pipeline, ASlowReaderPausesAndGoesOn) {
  ScriptedEngine::Options options = Options();
  options.batcher.max_congestion = seconds(60);
  ExpectTheSame({{0, Join(RequestOf("a", 20, 80))},
                 {0, Join(RequestOf("b", 20, 80, 2))},
                 {12, Congest(0, true)},
                 {30, Congest(0, false)},
                 {40, Congest(1, true)}},
                options);
  EXPECT_EQ(discarded(), 3) << "two pauses and one return";
  EXPECT_GT(prepared(), 60);
}

TEST_F(Pipeline, BlocksTakenEarlyChangeNoPreemptionAndNoCachedPrefix) {
  ScriptedEngine::Options options = Options();
  options.num_blocks = 14;
  Script script;
  for (uint32_t i = 0; i < 6; ++i) {
    script.insert(
        {static_cast<int>(9 * i), Join(RequestOf("p" + std::to_string(i), 40, 60, i % 2))});
  }
  for (int i = 0; i < 12; ++i) {
    script.insert({17 * i + 5, Congest(static_cast<size_t>(i % 6) / 2, i % 2 == 0)});
  }
  const Outcome outcome = ExpectTheSame(script, options);
  EXPECT_GT(outcome.preemptions, 0);
  EXPECT_GT(prepared(), discarded());
}

TEST_F(Pipeline, ABlockTakenEarlyForOneWhoThenPausesGoesBack) {
  ScriptedEngine::Options options = Options();
  options.num_blocks = 5;  // of 16 tokens: two each, and one that the other needs a step later
  const Outcome outcome = ExpectTheSame({{0, Join(RequestOf("pauses", 21, 20))},
                                         {0, Join(RequestOf("goes on", 20, 20, 2))},
                                         {12, Congest(0, true)},
                                         {30, Congest(0, false)}},
                                        options);
  EXPECT_EQ(outcome.preemptions, 0);
}

TEST_F(Pipeline, AStepThatFailsIsRepeatedOrEndsAllAsBefore) {
  for (const absl::Status& status :
       {absl::ResourceExhaustedError("scratch"), absl::InternalError("an illegal access")}) {
    for (int step = 0; step < 14; ++step) {
      Request sampled = RequestOf("b", 70, 9, 2);
      sampled.sampling.temperature = 0.8f;
      sampled.sampling.seed = 5;
      ExpectTheSame({{0, Join(RequestOf("a", 20, 12))}, {1, Join(sampled)}, {step, Fail(status)}});
    }
  }
}

TEST_F(Pipeline, ATokenThatBreaksTheModelEndsItsRequestOnly) {
  constexpr int32_t kBroken = 777;
  const TinyModel broken({.tied = false, .nan_embedding = kBroken});
  ScriptedEngine::Options options = Options();
  options.model_dir = broken.path();
  options.allow_nonfinite_weights = true;
  Request request = RequestOf("a", 20, 30);
  const Outcome sound = ExpectTheSame({{0, Join(request)}}, options);
  request.sampling.bias = {{kBroken, 100.0f}};
  request.stopping.max_tokens = 30;
  const Outcome outcome =
      ExpectTheSame({{0, Join(RequestOf("b", 9, 30, 3))}, {6, Join(request)}}, options);
  EXPECT_EQ(outcome.ids[1], std::vector<int32_t>{kBroken});
  EXPECT_EQ(outcome.ids[0].size(), 30u);
  EXPECT_EQ(sound.ids[0].size(), 30u);
}

TEST_F(Pipeline, PassesBesideStreamsMeasureTheSame) {
  const auto run = [this](Backend& backend) {
    ScriptedEngine engine(Options(), backend);
    engine.Submit(RequestOf("a", 20, 300));
    const auto recorder = std::make_shared<PassRecorder>();
    for (int step = 0; step < 5000; ++step) {
      if (step == 10) {
        engine.SubmitPass({.tokens = Prompt(120, 4), .decode_from = 60, .loss_from = 0}, recorder);
      }
      const auto stepped = engine.Step();
      EXPECT_TRUE(stepped.ok());
      if (step > 10 && !*stepped) break;
    }
    EXPECT_EQ(engine.dispatcher().pool().num_used(), 0);
    const auto outcome = recorder->Wait();
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return std::make_tuple(engine.events(0), outcome->losses, outcome->attention.kv_bytes_read);
  };
  EXPECT_EQ(run(plain_), run(deferring_));
  EXPECT_EQ(steps_->misused, 0);
  EXPECT_GT(prepared(), 200);
}

// Requests of all kinds, some of them bound by a format, that come, leave, pause and run out of
// time at random, in a small pool.
class RandomScript {
 public:
  RandomScript(uint32_t seed, const Tokenizer& tokenizer) : random_(seed), tokenizer_(tokenizer) {}

  Script Make() {
    Script script;
    const int requests = Between(4, 14);
    int step = 0;
    for (int i = 0; i < requests; ++i) {
      step += Chance(3) ? 0 : Between(1, 9);
      Request request = MakeRequest(i);
      script.insert({step, Chance(6) ? JoinFor(std::move(request), Between(5, 60))
                                     : Join(std::move(request))});
      const auto handle = static_cast<size_t>(i);
      if (Chance(5)) script.insert({step + Between(1, 40), Leave(handle)});
      if (Chance(4)) {
        const int slow = step + Between(1, 30);
        script.insert({slow, Congest(handle, true)});
        if (!Chance(4)) script.insert({slow + Between(1, 20), Congest(handle, false)});
      }
    }
    if (Chance(4)) script.insert({Between(3, 50), Fail(absl::ResourceExhaustedError("none"))});
    if (Chance(8)) script.insert({Between(20, 90), Fail(absl::InternalError("gone"))});
    return script;
  }

  int Between(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }

 private:
  bool Chance(int one_in) { return Between(1, one_in) == 1; }

  Request MakeRequest(int i) {
    Request request = RequestOf("r" + std::to_string(i), Between(1, 90), Between(1, 60),
                                static_cast<uint32_t>(Between(1, 4)));
    if (Chance(2)) {
      request.sampling.temperature = 0.9f;
      request.sampling.top_k = Chance(2) ? 0 : 20;
      request.sampling.seed = static_cast<uint64_t>(i);
    }
    if (Chance(2)) {
      request.sampling.repetition_penalty = 1.2f;
      request.sampling.frequency_penalty = 0.4f;
      request.sampling.presence_penalty = 0.1f;
    }
    if (Chance(3)) request.sampling.bias = {{Between(300, 7000), 8.0f}};
    if (Chance(3)) request.output.logprobs = Between(0, 3);
    if (Chance(6)) request.output.prompt_logprobs = 1;
    if (Chance(3)) request.stopping.stop_strings = {"e", "th"};
    if (Chance(4)) request.stopping.stop_ids = {Between(300, 7000), Between(300, 7000)};
    if (Chance(4)) request.stopping.min_tokens = request.stopping.max_tokens / 2;
    request.stopping.ignore_eos = Chance(2);
    request.output.layer_statistics = Chance(2);
    if (Chance(3)) request.attention = {.mode = AttentionMode::kFull};
    if (Chance(4)) request.priority = Chance(2) ? Priority::kLow : Priority::kHigh;
    if (Chance(4)) {
      const auto least = static_cast<size_t>(Between(1, 60));
      request.format = std::make_shared<FakeFormat>(
          tokenizer_,
          FakeFormat::Options{.judge = Digits(least, least + 10),
                              .ends = Chance(4) ? std::vector<int32_t>() : std::vector{2},
                              .refuses_after = Chance(8) ? Between(1, 40) : -1,
                              .denies = Chance(8)});
    }
    return request;
  }

  std::mt19937 random_;
  const Tokenizer& tokenizer_;
};

TEST_F(Pipeline, WhateverHappensNobodyCanTell) {
  const Checkpoint checkpoint = *Checkpoint::Open(model_.path());
  const auto tokenizer =
      *Tokenizer::Load(checkpoint.tokenizer_files(), *ParseModelConfig(checkpoint.config_json()));
  int all_prepared = 0;
  int all_discarded = 0;
  int parts = 0;
  int preemptions = 0;
  for (int round = 0; round < Rounds(25, 600) && !HasFailure(); ++round) {
    SCOPED_TRACE("seed " + std::to_string(round));
    RandomScript random(static_cast<uint32_t>(round), *tokenizer);
    ScriptedEngine::Options options = Options();
    options.num_blocks = random.Between(10, 13);
    options.batcher.max_running = random.Between(2, 8);
    options.batcher.prefix_cache = random.Between(1, 4) > 1;
    preemptions += ExpectTheSame(random.Make(), options).preemptions;
    all_prepared += prepared();
    all_discarded += discarded();
    parts += steps_->parts;
  }
  EXPECT_GT(all_prepared, 1000);
  EXPECT_GT(all_discarded, 100);
  EXPECT_GT(all_prepared, 4 * all_discarded);
  EXPECT_GT(preemptions, 5);
  EXPECT_GT(parts, 500) << "steps with masks";
}

}  // namespace
}  // namespace eta::testing
