#include "tests/bench/eta_bench/replay/replay_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/model/rope/rope_base.h"
#include "engine/request/request_validation.h"
#include "tests/bench/eta_bench/data.h"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {

class ReplayEngine::Sink final : public EventSink {
 public:
  void OnStarted(StartedEvent) override {}
  void OnPrefill(PrefillEvent) override {}
  void OnDelta(DeltaEvent event) override {
    answer.ids.insert(answer.ids.end(), event.ids.begin(), event.ids.end());
    for (const TokenDetail& token : event.logprobs) answer.logprobs.push_back(token.logprob);
  }
  void OnFinished(FinishedEvent event) override {
    answer.attention = event.attention;
    drafts = event.drafts;
    ended = true;
  }
  void OnFailed(absl::Status status, FinishedEvent) override { RequireOk(status); }
  bool Congested() const override { return false; }

  ReplayedAnswer answer;
  DraftCounts drafts;
  bool ended = false;
};

// The steps since the last look, of which there is one at most.
class ReplayEngine::Watch final : public Observer {
 public:
  struct Seen {
    bool prompts;
    int32_t sequences;
    int64_t tokens;
    bool only_makes_drafts;
  };
  void OnStep(const StepReport& report) override {
    seen_ = {.prompts = report.prefill_rows > 0,
             .sequences = report.sequences,
             .tokens = std::ssize(report.tokens),
             .only_makes_drafts = report.drafts.made == report.sequences};
  }
  void OnRequestEnd(const Request&, const absl::Status&, const FinishedEvent&) override {}
  std::optional<Seen> Take() { return std::exchange(seen_, std::nullopt); }

 private:
  std::optional<Seen> seen_;
};

double ReplayRun::row_bytes() const {
  AttentionSums sums;
  for (const ReplayedAnswer& answer : answers) sums.Add(answer.attention);
  return static_cast<double>(sums.kv_bytes_read + sums.index_bytes_read) /
         static_cast<double>(sums.decode_rows);
}

void ReplayRun::Add(const ReplayRun& other) {
  seconds += other.seconds;
  tokens += other.tokens;
  steps += other.steps;
  step_seconds.insert(step_seconds.end(), other.step_seconds.begin(), other.step_seconds.end());
  drafts.Add(other.drafts);
}

ReplayEngine::ReplayEngine(std::shared_ptr<Backend> backend, const TensorSource& source,
                           const TokenizerFiles& tokenizer, const ReplayEngineOptions& options)
    : options_(options), backend_(std::move(backend)), watch_(std::make_unique<Watch>()) {
  model_ = Require(
      Model::Load(source, backend_,
                  {.weights = ParseWeightFormat(options.weights).value_or(WeightFormat::kNative),
                   .max_rows = options.max_step_tokens,
                   .max_context = options.tokens}));
  tokenizer_ = Require(Tokenizer::Load(tokenizer, model_->config()));
  const KvGeometry geometry = MakeKvGeometry(config(), *ParseDType(options.kv_dtype));
  // A stream more than there are, so that prompts are still there for the next run.
  const int32_t blocks_each = options.tokens / geometry.block_size + 2;
  cache_ =
      Require(KvCache::Create(backend_, config(), geometry, (options.streams + 1) * blocks_each));
  dispatcher_ =
      std::make_unique<Dispatcher>(backend_, *model_, *cache_,
                                   BatcherOptions{.max_running = options.streams,
                                                  .max_step_tokens = options.max_step_tokens,
                                                  .max_decode_rows = model_->max_decode_rows(),
                                                  .shadow_rate = 0.0},
                                   watch_.get());
}

ReplayEngine::~ReplayEngine() = default;

SequenceOptions ReplayEngine::OptionsOf(const ReplayCase& replayed) const {
  SequenceOptions sequence;
  sequence.prompt = replayed.prompt;
  Request& request = sequence.request;
  request.stopping = {.max_tokens = static_cast<int32_t>(replayed.answer.size()),
                      .ignore_eos = true};
  request.output = {.text = false, .ids = true, .logprobs = 0};
  request.format = replayed.format;
  if (options_.full_attention) request.attention.mode = AttentionMode::kFull;
  sequence.attention = ResolveAttention(request.attention, config());
  sequence.rope_factor = RopeFactor(config(), options_.tokens);
  sequence.rope_theta = RopeTheta(config(), options_.tokens);
  return sequence;
}

void ReplayEngine::Fill(std::span<const ReplayCase> cases, uint64_t seed, cpu::Workers& workers) {
  constexpr int32_t kDistinctBlocks = 256;
  const KvGeometry& geometry = cache_->geometry();
  const KvContent content(geometry, kDistinctBlocks, seed, workers);
  std::vector<KvLayerView> layers;
  for (int32_t i = 0; i < config().num_layers; ++i) layers.push_back(cache_->layer(i));
  BlockPool& pool = dispatcher_->pool();
  for (size_t i = 0; i < cases.size(); ++i) {
    const Sequence sequence(OptionsOf(cases[i]), config(), geometry, *tokenizer_);
    const int32_t blocks = sequence.max_shared_blocks(geometry.block_size);
    const int32_t tokens = blocks * geometry.block_size;
    BlockTables tables(cache_->groups(), geometry.block_size);
    if (!tables.Grow(pool, tokens, tokens)) Fail("the cache is too small for the prompts");
    const SequencePlace place = {static_cast<int32_t>(i), tokens, tables.tables().front()};
    content.Fill(backend_, std::span(&place, 1), layers);
    tables.Publish(pool, sequence.prefix_keys(), 0, static_cast<size_t>(blocks), cases[i].prompt);
    tables.Release(pool);
  }
}

std::shared_ptr<ReplayEngine::Sink> ReplayEngine::Submit(const ReplayCase& replayed, uint64_t seed,
                                                         const DraftOptions& drafts) {
  if (!options_.own_answers) backend_.SetAnswer(seed, replayed.answer);
  SequenceOptions sequence = OptionsOf(replayed);
  sequence.handle = seed;
  sequence.request.id = std::to_string(seed);
  sequence.request.sampling = {.temperature = 0.0f, .seed = seed};
  sequence.seed = seed;
  sequence.arrival = Clock::now();
  sequence.drafts = drafts;
  auto sink = std::make_shared<Sink>();
  sequence.sink = sink;
  dispatcher_->batcher().Add(
      std::make_unique<Sequence>(std::move(sequence), config(), cache_->geometry(), *tokenizer_),
      Clock::now());
  return sink;
}

ReplayRun ReplayEngine::Run(std::span<const ReplayCase> cases, int32_t streams,
                            const DraftOptions& drafts) {
  ReplayRun run;
  streams = std::min(streams, static_cast<int32_t>(cases.size()));
  std::vector<std::shared_ptr<Sink>> sinks;
  double pending = 0.0;  // of steps that were not reported yet
  for (int32_t running = 0; running > 0 || sinks.size() < cases.size();) {
    for (; running < streams && sinks.size() < cases.size(); ++running) {
      sinks.push_back(Submit(cases[sinks.size()], sinks.size() + 1, drafts));
    }
    const Stopwatch watch;
    Require(dispatcher_->Step(Clock::now()));
    pending += watch.seconds();
    const auto seen = watch_->Take();
    running = static_cast<int32_t>(
        std::ranges::count_if(sinks, [](const auto& sink) { return !sink->ended; }));
    if (!seen) continue;
    if (!seen->prompts && seen->sequences == streams) {
      run.seconds += pending;
      run.step_seconds.push_back(pending);
      run.tokens += seen->tokens;
      run.steps += seen->only_makes_drafts ? 0 : 1;
    }
    pending = 0.0;
  }
  for (const auto& sink : sinks) {
    run.drafts.Add(sink->drafts);
    run.answers.push_back(std::move(sink->answer));
  }
  return run;
}

}  // namespace eta::bench
