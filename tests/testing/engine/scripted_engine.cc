#include "tests/testing/engine/scripted_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/request/request_validation.h"

namespace eta::testing {
namespace {

std::string Lines(std::span<const TokenDetail> details) {
  std::string line;
  for (const TokenDetail& detail : details) {
    absl::StrAppendFormat(&line, " %d %a", detail.id, detail.logprob);
    for (const TokenLogprob& other : detail.top) {
      absl::StrAppendFormat(&line, " (%d %a)", other.id, other.logprob);
    }
  }
  return line;
}

std::string Line(const FinishedEvent& event) {
  const AttentionSums& attention = event.attention;
  std::string line = absl::StrFormat(
      "reason %d stop '%s' id %d, %d prompt %d cached %d output tokens, %d preemptions, %d rows, "
      "density %a %a, bytes %d %d %d, measured %d: %a %a, full from %d",
      static_cast<int>(event.reason), event.matched_stop, event.matched_id.value_or(-1),
      event.prompt_tokens, event.cached_tokens, event.output_tokens, event.preemptions,
      attention.decode_rows, attention.head_density(), attention.union_density(),
      attention.kv_bytes_read, attention.kv_bytes_dense, attention.index_bytes_read,
      attention.shadow_row_layers, attention.mass_kept(), attention.output_error(),
      event.full_from.value_or(-1));
  for (const LayerDensity& layer : event.layers) {
    absl::StrAppendFormat(&line, " (%a %a)", layer.head_density, layer.union_density);
  }
  return line;
}

}  // namespace

class ScriptedEngine::Sink final : public EventSink {
 public:
  void OnStarted(StartedEvent event) override {
    events.push_back(absl::StrCat("started: ", event.prompt_tokens, " tokens, ",
                                  event.cached_tokens, " cached, seed ", event.seed));
  }
  void OnPrefill(PrefillEvent event) override {
    events.push_back(
        absl::StrCat("prefill: ", event.done, " of ", event.total, Lines(event.prompt_logprobs)));
  }
  void OnDelta(DeltaEvent event) override {
    std::string line = absl::StrCat("delta: '", event.text, "'");
    for (const int32_t id : event.ids) absl::StrAppend(&line, " ", id);
    ids.insert(ids.end(), event.ids.begin(), event.ids.end());
    text += event.text;
    const std::string details = Lines(event.logprobs);
    logprobs += details;
    events.push_back(line + details);
  }
  void OnFinished(FinishedEvent event) override {
    events.push_back("finished: " + Line(event));
    finished = std::move(event);
  }
  void OnFailed(absl::Status status, FinishedEvent so_far) override {
    events.push_back("failed: " + std::string(status.message()) + ": " + Line(so_far));
    failure = std::move(status);
  }
  bool Congested() const override { return congested; }

  std::vector<std::string> events;
  std::vector<int32_t> ids;
  std::string text;
  std::string logprobs;
  std::optional<FinishedEvent> finished;
  absl::Status failure;
  bool congested = false;
};

class ScriptedEngine::Watch final : public Observer {
 public:
  explicit Watch(ScriptedEngine& engine) : engine_(engine) {}

  void OnStep(const StepReport& report) override {
    engine_.preemptions_ += report.preemptions;
    engine_.masks_ += report.masks;
    engine_.drafts_made_.push_back(report.drafts.made);
    std::string line =
        absl::StrCat("step: ", report.prefill_rows, " prefill ", report.decode_rows, " decode ",
                     report.pass_rows, " pass rows, ", report.sequences_running, " run ",
                     report.requests_waiting, " wait, ", report.preemptions, " preempted;");
    for (const TokenReport& token : report.tokens) {
      absl::StrAppend(&line, " ", token.request->id, token.first ? " first" : "");
    }
    const ModelConfig& config = engine_.config();
    for (const DecodeRowReport& row : report.decode) {
      int64_t attended = 0;
      int64_t read = 0;
      for (int32_t layer = 0; layer < config.num_layers; ++layer) {
        const int64_t index = int64_t{layer} * report.num_rows + row.row;
        for (int32_t h = 0; h < config.num_query_heads; ++h) {
          attended += report.tokens_attended[index * config.num_query_heads + h];
        }
        for (int32_t h = 0; h < config.num_kv_heads; ++h) {
          read += report.tokens_read[index * config.num_kv_heads + h];
        }
      }
      absl::StrAppend(&line, " ", row.request->id, ":", row.kv_len, ",", row.sums.index_bytes_read,
                      ",", attended, ",", read);
    }
    engine_.reports_.push_back(std::move(line));
  }
  void OnRequestEnd(const Request& request, const absl::Status& status,
                    const FinishedEvent& outcome) override {
    engine_.reports_.push_back(absl::StrCat("end of ", request.id, ": ",
                                            std::string(status.message()), " ", Line(outcome)));
  }

 private:
  ScriptedEngine& engine_;
};

ScriptedEngine::ScriptedEngine(const Options& options, Backend& backend)
    : drafts_(options.drafts), watch_(std::make_unique<Watch>(*this)) {
  const auto checkpoint = Checkpoint::Open(options.model_dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto model = Model::Load(*checkpoint, backend,
                           {.allow_nonfinite_weights = options.allow_nonfinite_weights,
                            .max_rows = options.batcher.max_step_tokens,
                            .max_decode_rows = std::min(options.batcher.max_decode_rows,
                                                        options.batcher.max_step_tokens),
                            .max_context = 1024});
  EXPECT_TRUE(model.ok()) << model.status();
  model_ = *std::move(model);
  tokenizer_ = *Tokenizer::Load(checkpoint->tokenizer_files(), model_->config());
  cache_ = *KvCache::Create(backend, model_->config(),
                            MakeKvGeometry(model_->config(), DType::kFloat32), options.num_blocks);
  dispatcher_ =
      std::make_unique<Dispatcher>(backend, *model_, *cache_, options.batcher, watch_.get());
}

ScriptedEngine::~ScriptedEngine() = default;

void ScriptedEngine::Submit(Request request) {
  SequenceOptions sequence;
  sequence.handle = sinks_.size();
  sequence.prompt = std::get<1>(request.prompt);
  sequence.attention = ResolveAttention(request.attention, config());
  sequence.rope_theta = config().rope_theta;
  sequence.seed = request.sampling.seed.value_or(0);
  sequence.arrival = now_;
  sequence.drafts = drafts_;
  sinks_.push_back(std::make_shared<Sink>());
  sequence.sink = sinks_.back();
  sequence.request = std::move(request);
  dispatcher_->batcher().Add(
      std::make_unique<Sequence>(std::move(sequence), config(), cache_->geometry(), *tokenizer_),
      now_);
}

void ScriptedEngine::SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) {
  PassRunOptions run;
  run.handle = ~uint64_t{0};
  run.attention = ResolveAttention(pass.attention, config());
  run.rope_theta = config().rope_theta;
  if (run.attention.temper_special) {
    run.tempered = TemperedKeys(tokenizer_->special_ids(), std::ssize(pass.tokens));
    run.tempered.Append(pass.tokens);
  }
  run.pass = std::move(pass);
  run.sink = std::move(sink);
  dispatcher_->passes().Add(std::make_unique<PassRun>(std::move(run), config()));
}

void ScriptedEngine::SetCongested(size_t handle, bool congested) {
  sinks_[handle]->congested = congested;
}

absl::StatusOr<bool> ScriptedEngine::Step() {
  now_ += std::chrono::seconds(1);
  return dispatcher_->Step(now_);
}

const std::vector<std::string>& ScriptedEngine::events(size_t handle) const {
  return sinks_[handle]->events;
}

std::vector<int32_t> ScriptedEngine::ids(size_t handle) const {
  return sinks_[handle]->ids;
}

std::string ScriptedEngine::text(size_t handle) const {
  return sinks_[handle]->text;
}

std::string ScriptedEngine::logprobs(size_t handle) const {
  return sinks_[handle]->logprobs;
}

const std::optional<FinishedEvent>& ScriptedEngine::finished(size_t handle) const {
  return sinks_[handle]->finished;
}

const absl::Status& ScriptedEngine::failure(size_t handle) const {
  return sinks_[handle]->failure;
}

}  // namespace eta::testing
