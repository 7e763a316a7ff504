// Answers that a format binds: they are of it, whatever else ends or shapes an answer, and whatever
// goes on around them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "engine/batching/formats/mask_crew.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/fake_format.h"
#include "tests/testing/engine/scripted_engine.h"
#include "tests/testing/engine/step_watch.h"
#include "tests/testing/kernels/deferring_backend.h"
#include "tests/testing/kernels/faulty_backend.h"

namespace eta::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Options = FakeFormat::Options;

constexpr int32_t kEnd = 2;  // of text, of a tiny model

struct Answer {
  std::vector<std::string> events;
  std::vector<int32_t> ids;
  std::string text;
  std::optional<FinishedEvent> finished;
  absl::Status failure;
};

struct Outcome {
  std::vector<Answer> answers;
  std::vector<std::string> reports;
  int32_t masks = 0;
  int32_t preemptions = 0;
};

class BoundAnswers : public ::testing::Test {
 protected:
  BoundAnswers() {
    auto backend = MakeBackend({.name = "cpu", .num_threads = 1, .compute = DType::kFloat32});
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    const auto checkpoint = *Checkpoint::Open(model_.path());
    config_ = *ParseModelConfig(checkpoint.config_json());
    tokenizer_ = *Tokenizer::Load(checkpoint.tokenizer_files(), config_);
  }

  std::shared_ptr<FakeFormat> Format(Options options) const {
    return std::make_shared<FakeFormat>(*tokenizer_, std::move(options));
  }
  std::shared_ptr<FakeFormat> Format(Judge judge) const {
    return Format(Options{.judge = std::move(judge)});
  }

  // Greedy, ended by the end of text.
  static Request Bound(std::shared_ptr<const CompiledFormat> format, int32_t max_tokens = 64,
                       uint32_t seed = 1) {
    Request request = Greedy(Prompt(9, seed), max_tokens);
    request.id = "r" + std::to_string(seed);
    request.stopping.ignore_eos = false;
    request.format = std::move(format);
    return request;
  }
  static Request Sampled(Request request, uint64_t seed) {
    request.sampling.temperature = 1.0f;
    request.sampling.seed = seed;
    return request;
  }

  // Until nothing is left. Request i is submitted before step `i * apart`.
  Outcome Play(const std::vector<Request>& requests, Backend& backend, int32_t num_blocks = 64,
               int apart = 0) {
    ScriptedEngine engine({.model_dir = model_.path(),
                           .num_blocks = num_blocks,
                           .batcher = {.max_running = 6, .max_step_tokens = 48}},
                          backend);
    const Batcher& batcher = engine.dispatcher().batcher();
    for (int step = 0; step < 5000; ++step) {
      while (engine.num_requests() < requests.size() &&
             static_cast<int>(engine.num_requests()) * apart <= step) {
        engine.Submit(requests[engine.num_requests()]);
      }
      const auto ran = engine.Step();
      EXPECT_TRUE(ran.ok()) << ran.status();
      const bool idle = batcher.num_running() + batcher.queue().size() == 0;
      if (!ran.ok() || (idle && engine.num_requests() == requests.size())) break;
    }
    EXPECT_EQ(engine.dispatcher().pool().num_used(), 0);
    Outcome outcome;
    for (size_t i = 0; i < requests.size(); ++i) {
      outcome.answers.push_back(
          {engine.events(i), engine.ids(i), engine.text(i), engine.finished(i), engine.failure(i)});
    }
    outcome.reports = engine.reports();
    outcome.masks = engine.masks();
    outcome.preemptions = engine.preemptions();
    return outcome;
  }
  Answer Ask(const Request& request) { return Play({request}, *backend_).answers[0]; }

  // Bound and free ones, of all kinds of settings.
  std::vector<Request> Mixture() const {
    std::vector<Request> requests = {
        Bound(Format(Digits(12, 12)), 64, 1),
        Greedy(Prompt(12, 2), 40),
        Sampled(Bound(Format(Digits(1, 30)), 64, 3), 5),
        Sampled(Bound(Format(OneOf({"yes", "no", "undecided"})), 64, 4), 6),
        Sampled(Greedy(Prompt(7, 5), 40), 7),
        Sampled(Bound(Format(Digits(25, 40)), 64, 6), 8)};
    requests[1].id = "free";
    requests[4].id = "drawn";
    requests[2].stopping.min_tokens = 4;
    requests[5].sampling.frequency_penalty = 0.7f;
    requests[5].sampling.repetition_penalty = 1.2f;
    requests[5].sampling.top_p = 0.9f;
    requests[5].output.logprobs = 2;
    return requests;
  }

  TinyModel model_;
  std::shared_ptr<Backend> backend_;
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(BoundAnswers, GoOnWithTheReasoningThatThePromptHasBegun) {
  const auto format =
      Format(Options{.judge =
                         [](std::string_view text) {
                           const std::string_view whole = "<think>a";
                           if (text == whole) return Fit::kWhole;
                           return whole.starts_with(text) ? Fit::kBegun : Fit::kNone;
                         },
                     .reasoning_begin = "<think>"});
  Request request = Bound(format);
  request.in_reasoning = true;
  const Outcome outcome = Play({request}, *backend_);
  ASSERT_TRUE(outcome.answers[0].finished.has_value()) << outcome.answers[0].failure;
  EXPECT_EQ(outcome.answers[0].text, "a") << "the marker is the prompt's";
  EXPECT_EQ(outcome.answers[0].finished->output_tokens, 2);
}

TEST_F(BoundAnswers, AreOfTheirFormat) {
  std::set<std::string> words;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    Request request = Bound(Format(OneOf({"yes", "no", "maybe so"})), 64, seed);
    if (seed % 2 == 1) request = Sampled(request, seed);
    const Answer word = Ask(request);
    ASSERT_TRUE(word.finished) << word.failure;
    EXPECT_EQ(word.finished->reason, FinishReason::kEndOfText);
    EXPECT_EQ(word.finished->matched_id, kEnd);
    EXPECT_THAT(word.text, AnyOf("yes", "no", "maybe so"));
    words.insert(word.text);

    request.format = Format(Digits(5, 9));
    const Answer digits = Ask(request);
    ASSERT_TRUE(digits.finished) << digits.failure;
    EXPECT_EQ(digits.finished->reason, FinishReason::kEndOfText);
    EXPECT_EQ(Digits(5, 9)(digits.text), Fit::kWhole) << digits.text;
  }
  EXPECT_GE(words.size(), 2u) << "drawn, not always the same";
}

TEST_F(BoundAnswers, TellTheirFormatOfEachTokenOnce) {
  const auto format = Format(Digits(12, 12));
  const Outcome outcome = Play({Bound(format)}, *backend_);
  EXPECT_EQ(format->accepted(), outcome.answers[0].ids);
  EXPECT_EQ(outcome.masks, static_cast<int32_t>(outcome.answers[0].ids.size()) + 1)
      << "for each token, and for the end";
}

TEST_F(BoundAnswers, LeaveTokensToTheThreadThatFills) {
  const auto id_of = [&](std::string_view bytes) {
    int32_t id = 0;
    while (tokenizer_->PieceBytes(id) != bytes) ++id;
    return id;
  };
  const auto format = Format(Digits(2, 4));
  const int32_t seven = id_of("7");
  BoundAnswer answer(Bound(format), config_, *tokenizer_);
  EXPECT_TRUE(answer.Accept(seven).ok());
  EXPECT_TRUE(answer.Accept(seven).ok());
  EXPECT_THAT(format->accepted(), IsEmpty());
  answer.Fill();
  EXPECT_THAT(format->accepted(), ElementsAre(seven, seven));
  EXPECT_TRUE(answer.complete());

  // None is lost where the answer ends.
  EXPECT_TRUE(answer.Accept(seven).ok());
  EXPECT_TRUE(answer.Check(FinishReason::kLength).ok());
  EXPECT_THAT(format->accepted(), SizeIs(3));
  EXPECT_TRUE(answer.Accept(id_of("a")).ok());
  EXPECT_FALSE(answer.complete());
  EXPECT_THAT(answer.Check(FinishReason::kCutOff),
              FailsFor(absl::StatusCode::kInternal, "ANSWER_INVALID"));
}

TEST_F(BoundAnswers, HaveTheModelsOwnLogprobs) {
  Request request = Bound(Format(Digits(6, 6)));
  request.attention.mode = AttentionMode::kFull;
  request.output.logprobs = 1;
  const Answer answer = Ask(request);
  // The same tokens as a prompt.
  std::vector<int32_t> tokens = std::get<1>(request.prompt);
  tokens.insert(tokens.end(), answer.ids.begin(), answer.ids.end());
  Request known = Greedy(tokens, 1);
  known.attention.mode = AttentionMode::kFull;
  known.output.prompt_logprobs = 1;
  Request unbound = request;
  unbound.format = nullptr;
  unbound.stopping.max_tokens = 1;
  const auto numbers = [](const std::string& line) {  // " ID LOGPROB (ID LOGPROB)" each
    std::vector<double> found;
    for (size_t at = line.find('x'); at != std::string::npos; at = line.find('x', at + 1)) {
      const size_t begin = line.rfind(' ', at) + 1;
      found.push_back(std::strtod(line.c_str() + begin, nullptr));
    }
    return found;
  };
  std::vector<double> drawn;
  for (const std::string& event : answer.events) {
    if (!event.starts_with("delta")) continue;
    for (const double number : numbers(event)) drawn.push_back(number);
  }
  std::vector<double> of_prompt;
  for (const std::string& event : Ask(known).events) {
    if (event.starts_with("prefill")) {
      for (const double number : numbers(event)) of_prompt.push_back(number);
    }
  }
  ASSERT_EQ(drawn.size(), 2 * answer.ids.size());
  ASSERT_GE(of_prompt.size(), drawn.size());
  of_prompt.erase(of_prompt.begin(), of_prompt.end() - static_cast<std::ptrdiff_t>(drawn.size()));
  for (size_t i = 0; i < drawn.size(); ++i) EXPECT_NEAR(drawn[i], of_prompt[i], 1e-4) << i;
}

TEST_F(BoundAnswers, DoNotEndBeforeMinTokensWhereMoreMayCome) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    Request request = Sampled(Bound(Format(Digits(1, 100)), 40, seed), seed);
    request.stopping.min_tokens = 12;
    const Answer answer = Ask(request);
    ASSERT_TRUE(answer.finished) << answer.failure;
    EXPECT_GE(answer.ids.size(), 12u);
  }
}

TEST_F(BoundAnswers, EndBeforeMinTokensWhereNothingElseMayCome) {
  Request request = Bound(Format(OneOf({"yes", "no"})));
  request.stopping.min_tokens = 30;
  const Answer answer = Ask(request);
  ASSERT_TRUE(answer.finished) << answer.failure;
  EXPECT_EQ(answer.finished->reason, FinishReason::kEndOfText);
  EXPECT_THAT(answer.text, AnyOf("yes", "no"));
  EXPECT_LT(answer.finished->output_tokens, 10);
}

TEST_F(BoundAnswers, EndWithTheEndIgnoredOnlyWhereNothingElseMayCome) {
  Request request = Bound(Format(Digits(1, 20)));
  request.stopping.ignore_eos = true;
  const Answer answer = Ask(request);
  ASSERT_TRUE(answer.finished) << answer.failure;
  EXPECT_EQ(answer.finished->reason, FinishReason::kEndOfText);
  EXPECT_THAT(answer.text, SizeIs(20));
  request.stopping.max_tokens = 3;
  EXPECT_EQ(Ask(request).finished->reason, FinishReason::kLength) << "and complete";
}

TEST_F(BoundAnswers, EndWhereTheyAreStopped) {
  const Request whole = Bound(Format(Options{.judge = Digits(20, 20), .denies = false}));
  const Answer undisturbed = Ask(whole);
  ASSERT_GE(undisturbed.ids.size(), 5u);

  Request request = whole;
  request.stopping.stop_strings = {undisturbed.text.substr(2, 2)};
  Answer answer = Ask(request);
  ASSERT_TRUE(answer.finished) << answer.failure;
  EXPECT_EQ(answer.finished->reason, FinishReason::kStopString) << "though it is not complete";
  EXPECT_TRUE(undisturbed.text.starts_with(answer.text));
  EXPECT_LE(answer.text.size(), 2u);

  request = whole;
  request.stopping.stop_ids = {undisturbed.ids[3]};
  answer = Ask(request);
  ASSERT_TRUE(answer.finished) << answer.failure;
  EXPECT_EQ(answer.finished->reason, FinishReason::kStopToken);
  EXPECT_EQ(answer.finished->matched_id, undisturbed.ids[3]);
  EXPECT_LE(answer.ids.size(), 3u);

  // Tokens that the format does not take cannot be drawn, and so stop nothing.
  request = whole;
  const std::vector<int32_t> word = *tokenizer_->Encode("stop", false);
  request.stopping.stop_ids = word;
  request.sampling.bias = {{word[0], 100.0f}};
  EXPECT_EQ(Ask(request).ids, undisturbed.ids);
}

TEST_F(BoundAnswers, AreCutOffWhereMaxTokensLeaveThemIncomplete) {
  const Answer cut = Ask(Bound(Format(Digits(60, 60)), 5));
  ASSERT_TRUE(cut.finished) << cut.failure;
  EXPECT_EQ(cut.finished->reason, FinishReason::kCutOff);
  EXPECT_EQ(cut.finished->output_tokens, 5);
  EXPECT_THAT(cut.ids, SizeIs(5));
}

// bad input: Device | an answer that is not what its format asks for | INTERNAL, ANSWER_INVALID for
//   that one; others go on
TEST_F(BoundAnswers, ThatAreNotWhatWasAskedForFail) {
  const Outcome outcome =
      Play({Bound(Format(Options{.judge = Digits(6, 6), .denies = true}), 64, 1),
            Bound(Format(Digits(12, 12)), 64, 2)},
           *backend_);
  const Answer& denied = outcome.answers[0];
  EXPECT_THAT(denied.failure, FailsFor(absl::StatusCode::kInternal, "ANSWER_INVALID"));
  EXPECT_THAT(denied.failure.message(), HasSubstr("not what was asked for: '" + denied.text));
  EXPECT_THAT(denied.text, SizeIs(6)) << "it was sent before";
  EXPECT_EQ(outcome.answers[1].text.size(), 12u);
  const auto said = [&](const std::string& line) {
    return line.starts_with("end of r1: not what");
  };
  EXPECT_EQ(std::ranges::count_if(outcome.reports, said), 1) << "the observer was told";
}

// bad input: Device | a format that refuses a token which it had allowed | INTERNAL, ANSWER_INVALID
//   for that one; others go on
TEST_F(BoundAnswers, WhoseFormatRefusesATokenFail) {
  const Outcome outcome =
      Play({Bound(Format(Options{.judge = Digits(12, 12), .refuses_after = 2}), 64, 1),
            Bound(Format(Digits(12, 12)), 64, 2)},
           *backend_);
  EXPECT_THAT(outcome.answers[0].failure, FailsFor(absl::StatusCode::kInternal, "ANSWER_INVALID"));
  EXPECT_THAT(outcome.answers[0].ids, SizeIs(3)) << "it is told so when the next one is drawn";
  EXPECT_EQ(outcome.answers[1].text.size(), 12u);
}

// Neither as if no token could come next, nor as if a complete answer had ended.
TEST_F(BoundAnswers, WhoseGuideFailsSayWhy) {
  const absl::Status slow = MakeError(absl::StatusCode::kDeadlineExceeded, "format: too slow",
                                      {.reason = "FORMAT_TOO_SLOW", .field = "format"});
  for (const Judge& judge : {Digits(12, 12), Digits(1, 12)}) {
    const Outcome outcome =
        Play({Bound(Format(Options{.judge = judge, .fails_after = 3, .failure = slow}), 64, 1),
              Bound(Format(Digits(12, 12)), 64, 2)},
             *backend_);
    EXPECT_THAT(outcome.answers[0].failure,
                FailsFor(absl::StatusCode::kDeadlineExceeded, "FORMAT_TOO_SLOW"));
    EXPECT_THAT(outcome.answers[0].ids, SizeIs(3));
    EXPECT_EQ(outcome.answers[1].text.size(), 12u);
  }
  // It failed between the mask and the token.
  const Answer late = Ask(Bound(Format(Options{.judge = Digits(12, 12),
                                               .refuses_after = 2,
                                               .fails_after = 2,
                                               .late = true,
                                               .failure = slow})));
  EXPECT_THAT(late.failure, FailsFor(absl::StatusCode::kDeadlineExceeded, "FORMAT_TOO_SLOW"));
}

// bad input: Device | no memory to find out what may follow in an answer | RESOURCE_EXHAUSTED,
//   MEMORY_PRESSURE for that one; others go on
TEST_F(BoundAnswers, WithoutMemoryForAMaskFail) {
  const Outcome outcome =
      Play({Bound(Format(Options{.judge = Digits(12, 12), .no_memory = true}), 64, 1),
            Bound(Format(Digits(12, 12)), 64, 2)},
           *backend_);
  EXPECT_THAT(outcome.answers[0].failure,
              FailsFor(absl::StatusCode::kResourceExhausted, "MEMORY_PRESSURE"));
  EXPECT_EQ(outcome.answers[1].text.size(), 12u);
}

// bad input: Device | a format and logit_bias that leave no token | INVALID_ARGUMENT,
//   sampling.logit_bias
TEST_F(BoundAnswers, WithoutATokenForTheirBiasFail) {
  Request request = Bound(Format(OneOf({"yes"})));
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (std::string("yes").starts_with(tokenizer_->PieceBytes(id))) {
      request.sampling.bias.push_back({id, -std::numeric_limits<float>::infinity()});
    }
  }
  const absl::Status failure = Ask(request).failure;
  EXPECT_THAT(failure, FailsFor(absl::StatusCode::kInvalidArgument, "INVALID_FIELD"));
  EXPECT_EQ(GetErrorDetail(failure).field, "sampling.logit_bias");
}

// bad input: Device | a format that no token of the vocabulary can go on with |
//   FAILED_PRECONDITION, UNSUPPORTED_BY_MODEL, format
TEST_F(BoundAnswers, ThatNoTokenCanGoOnWithFail) {
  const Answer stuck = Ask(
      Bound(Format([](std::string_view text) { return text.empty() ? Fit::kBegun : Fit::kNone; })));
  EXPECT_THAT(stuck.failure,
              FailsFor(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_BY_MODEL"));
  EXPECT_EQ(GetErrorDetail(stuck.failure).field, "format");
  EXPECT_THAT(stuck.ids, IsEmpty());
}

TEST_F(BoundAnswers, EndByThemselvesWhereNoTokenEndsThem) {
  const Answer answer = Ask(Bound(Format(Options{.judge = Digits(7, 7), .ends = {}})));
  ASSERT_TRUE(answer.finished) << answer.failure;
  EXPECT_EQ(answer.finished->reason, FinishReason::kEndOfText);
  EXPECT_EQ(answer.finished->matched_id, std::nullopt);
  EXPECT_THAT(answer.text, SizeIs(7));
  EXPECT_EQ(answer.finished->output_tokens, static_cast<int32_t>(answer.ids.size()));

  const auto nothing = [](std::string_view text) {
    return text.empty() ? Fit::kWhole : Fit::kNone;
  };
  const Answer empty = Ask(Bound(Format(Options{.judge = nothing, .ends = {}})));
  ASSERT_TRUE(empty.finished) << empty.failure;
  EXPECT_EQ(empty.finished->reason, FinishReason::kEndOfText);
  EXPECT_EQ(empty.finished->output_tokens, 0);
}

TEST_F(BoundAnswers, AreFreeWhereTheirFormatBindsNothing) {
  const auto all = [](std::string_view) { return Fit::kWhole; };
  for (const int32_t min_tokens : {0, 15}) {
    Request free = Sampled(Greedy(Prompt(9, 1), 20), 3);
    free.stopping.ignore_eos = false;
    free.stopping.min_tokens = min_tokens;
    Request bound = free;
    bound.format = Format(Options{.judge = all, .binds = false});
    const Answer answer = Ask(bound);
    ASSERT_TRUE(answer.finished) << answer.failure;
    EXPECT_EQ(answer.events, Ask(free).events);
  }
}

TEST_F(BoundAnswers, AreTheSameWhateverRunsBesideThem) {
  const std::vector<Request> requests = Mixture();
  const Outcome together = Play(requests, *backend_, 64, 2);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(requests[i].id);
    EXPECT_TRUE(together.answers[i].finished) << together.answers[i].failure;
    const Answer alone = Ask(requests[i]);
    EXPECT_EQ(together.answers[i].ids, alone.ids);
    EXPECT_EQ(together.answers[i].text, alone.text);
  }
  EXPECT_EQ(together.answers[0].text.size(), 12u);
  EXPECT_GE(together.answers[5].text.size(), 25u);
}

TEST_F(BoundAnswers, AreTheSameAfterPreemptions) {
  std::vector<Request> requests = Mixture();
  const auto format = Format(Digits(60, 60));
  for (const uint32_t seed : {9, 10, 11}) requests.push_back(Bound(format, 128, seed));
  const Outcome roomy = Play(requests, *backend_);
  const size_t accepted = format->accepted().size();
  const Outcome tight = Play(requests, *backend_, 10);
  EXPECT_EQ(roomy.preemptions, 0);
  int32_t of_bound = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(tight.answers[i].ids, roomy.answers[i].ids) << requests[i].id;
    EXPECT_EQ(tight.answers[i].text, roomy.answers[i].text) << requests[i].id;
    ASSERT_TRUE(tight.answers[i].finished) << tight.answers[i].failure;
    if (requests[i].format != nullptr) of_bound += tight.answers[i].finished->preemptions;
  }
  EXPECT_GT(of_bound, 0);
  EXPECT_EQ(format->accepted().size(), 2 * accepted) << "no token twice";
}

TEST_F(BoundAnswers, AreTheSameBehindACachedPrefix) {
  Request request = Bound(Format(Digits(12, 12)));
  request.prompt = Prompt(60, 4);
  const Outcome outcome = Play({request, request}, *backend_, 64, 30);
  ASSERT_TRUE(outcome.answers[1].finished) << outcome.answers[1].failure;
  EXPECT_GT(outcome.answers[1].finished->cached_tokens, 30);
  EXPECT_EQ(outcome.answers[1].ids, outcome.answers[0].ids);
}

TEST_F(BoundAnswers, AreTheSameInStepsThatArePrepared) {
  const auto steps = std::make_shared<StepCounts>();
  StepWatch deferring(std::make_shared<DeferringBackend>(backend_), steps);
  const Outcome plain = Play(Mixture(), *backend_, 64, 3);
  const Outcome deferred = Play(Mixture(), deferring, 64, 3);
  EXPECT_EQ(deferred.reports, plain.reports);
  EXPECT_EQ(deferred.masks, plain.masks);
  for (size_t i = 0; i < plain.answers.size(); ++i) {
    EXPECT_EQ(deferred.answers[i].events, plain.answers[i].events) << i;
  }
  EXPECT_EQ(steps->misused, 0);
  EXPECT_GT(steps->prepared, 10);
  EXPECT_GT(steps->parts, 10);
  EXPECT_GT(steps->launched, steps->parts) << "steps without a mask are launched whole";
}

TEST_F(BoundAnswers, ArePreparedForEachTokenButTheFirst) {
  const auto steps = std::make_shared<StepCounts>();
  StepWatch deferring(std::make_shared<DeferringBackend>(backend_), steps);
  Request request = Bound(Format(Digits(1, 100)), 30);
  request.stopping.ignore_eos = true;
  const Outcome outcome = Play({request}, deferring);
  EXPECT_THAT(outcome.answers[0].ids, SizeIs(30));
  EXPECT_EQ(steps->prepared, 28);
  EXPECT_EQ(steps->discarded, 0);
  EXPECT_EQ(steps->parts, 30) << "the draws of each step are launched apart";
}

// A step for which the device has no memory counts for nothing, and comes again.
TEST_F(BoundAnswers, AreNotMovedByAStepThatCountsForNothing) {
  const auto format = Format(Digits(12, 12));
  const std::vector<Request> requests = {Bound(format, 64, 1),
                                         Bound(Format(Digits(30, 30)), 64, 2)};
  const Answer whole = Ask(requests[0]);
  const auto faults = std::make_shared<Faults>();
  for (const bool defers : {false, true}) {
    FaultyBackend faulty(defers ? std::make_shared<DeferringBackend>(backend_) : backend_, faults);
    ScriptedEngine engine({.model_dir = model_.path(),
                           .num_blocks = 64,
                           .batcher = {.max_running = 6, .max_step_tokens = 48}},
                          faulty);
    for (int step = 0; step < 40; ++step) {
      if (step < 2) engine.Submit(requests[static_cast<size_t>(step)]);
      if (step == 5) faults->FailNextFinish(absl::ResourceExhaustedError("no memory"));
      ASSERT_TRUE(engine.Step().ok());
    }
    EXPECT_EQ(engine.ids(0), whole.ids);
    EXPECT_TRUE(engine.finished(0).has_value()) << engine.failure(0);
    EXPECT_FALSE(engine.failure(1).ok()) << "it gave way";
  }
}

// The device is lost while masks are being filled.
TEST_F(BoundAnswers, EndWithTheDevice) {
  const auto faults = std::make_shared<Faults>();
  FaultyBackend faulty(std::make_shared<DeferringBackend>(backend_), faults);
  ScriptedEngine engine({.model_dir = model_.path(),
                         .num_blocks = 64,
                         .batcher = {.max_running = 6, .max_step_tokens = 48}},
                        faulty);
  engine.Submit(Bound(Format(Digits(30, 30))));
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(engine.Step().ok());
  faults->FailNextFinish(absl::InternalError("lost"));
  EXPECT_FALSE(engine.Step().ok());
}

TEST_F(BoundAnswers, AreFilledOnSeveralThreads) {
  std::atomic<int> inside = 0;
  std::atomic<bool> met = false;
  std::mutex mutex;
  std::set<std::thread::id> threads;
  // The first waits for a second, which only another thread can begin.
  const auto meet = [&] {
    {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    }
    if (++inside >= 2) met = true;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!met && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  };
  const auto format = Format(Options{.judge = OneOf({"yes"}), .on_fill = meet});
  std::vector<std::shared_ptr<BoundAnswer>> answers;
  for (int i = 0; i < 16; ++i) {
    answers.push_back(std::make_shared<BoundAnswer>(Bound(format), config_, *tokenizer_));
  }
  MaskCrew crew;
  crew.Join();
  crew.Begin({});
  crew.Join();
  for (int round = 0; round < 3; ++round) {
    crew.Begin(answers);
    crew.Join();
    for (const auto& answer : answers) EXPECT_TRUE(answer->may_draw());
  }
  EXPECT_TRUE(met);
  EXPECT_GE(threads.size(), 2u);
  EXPECT_EQ(inside, 48) << "each once in a round";
}

}  // namespace
}  // namespace eta::testing
