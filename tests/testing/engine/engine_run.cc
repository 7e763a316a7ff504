#include "tests/testing/engine/engine_run.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <latch>
#include <random>
#include <thread>
#include <utility>

#include "engine/front/step_engine.h"
#include "tests/testing/kernels/deferring_backend.h"

namespace eta::testing {
namespace {

std::string TestBackend() {
  const char* name = std::getenv("ETA_TEST_BACKEND");
  return name != nullptr ? name : "cpu";
}

absl::StatusOr<std::unique_ptr<Engine>> CreateDeferring(const EngineOptions& options,
                                                        Observer* observer) {
  const auto checkpoint = Checkpoint::Open(options.model_dir);
  if (!checkpoint.ok()) return checkpoint.status();
  auto backend = MakeBackend(options.backend);
  if (!backend.ok()) return backend.status();
  return StepEngine::Create(options, *checkpoint,
                            std::make_unique<DeferringBackend>(*std::move(backend)), observer);
}

// Holds the engine before its next step once its request has started.
class HoldingRecorder : public Recorder {
 public:
  void OnStarted(StartedEvent event) override {
    Recorder::OnStarted(std::move(event));
    released_.wait();
  }
  void Release() { released_.count_down(); }

 private:
  std::latch released_{1};
};

void SubmitTo(const std::shared_ptr<Recorder>& recorder, Engine& engine, Request request) {
  const auto handle = Submit(engine, std::move(request), recorder);
  if (!handle.ok()) recorder->OnFailed(handle.status(), {});
}

std::shared_ptr<ThresholdProfile> EmptyProfile(const ModelConfig& config, const std::string& name) {
  auto profile = std::make_shared<ThresholdProfile>();
  profile->name = name;
  profile->num_layers = config.num_layers;
  profile->num_query_heads = config.num_query_heads;
  return profile;
}

void FillThresholds(ThresholdProfile& profile, float threshold) {
  profile.thresholds.assign(
      static_cast<size_t>(profile.num_layers) * static_cast<size_t>(profile.num_query_heads),
      threshold);
}

}  // namespace

EngineOptions OptionsFor(const TinyModel& model) {
  EngineOptions options;
  options.model_dir = model.path();
  options.model_name = "tiny";
  options.backend.num_threads = 2;
  if (TestBackend() != "deferring") options.backend.name = TestBackend();
  if (options.backend.name == "cuda") options.backend.compute = DType::kFloat32;
  options.speculation = Speculation::kOff;
  options.kv_dtype = DType::kFloat32;
  options.kv_pool_bytes = int64_t{32} << 20;
  options.limits.max_context = 4096;
  return options;
}

void UseReference(EngineOptions& options) {
  options.backend.name = "reference";
  options.backend.compute = BackendOptions().compute;
}

EngineOptions ReferenceOptionsFor(const TinyModel& model) {
  EngineOptions options = OptionsFor(model);
  UseReference(options);
  return options;
}

double BatchTolerance() {
  return TestBackend() == "cuda" ? 1e-4 : 0.0;
}

EngineOptions WithBlocks(EngineOptions options, int32_t num_blocks) {
  const auto engine = Start(options);
  const auto block_bytes =
      static_cast<int64_t>(engine->info().kv_bytes) / engine->info().num_blocks;
  options.kv_pool_bytes = block_bytes * num_blocks;
  return options;
}

std::unique_ptr<Engine> Start(const EngineOptions& options, Observer* observer) {
  auto engine = TestBackend() == "deferring" ? CreateDeferring(options, observer)
                                             : Engine::Create(options, observer);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::vector<int32_t> Prompt(int32_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt = {1};
  while (static_cast<int32_t>(prompt.size()) < length) {
    prompt.push_back(300 + static_cast<int32_t>(random() % 7000));
  }
  return prompt;
}

Request Greedy(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.id = "test";
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0f;
  request.stopping.max_tokens = max_tokens;
  request.stopping.ignore_eos = true;
  request.output.ids = true;
  return request;
}

AttentionChoice Frozen(const ModelConfig& config, const std::string& name) {
  const auto profile = EmptyProfile(config, name);
  if (config.has_relative_thresholds()) {
    profile->relative_c = -2.5f;
  } else {
    FillThresholds(*profile, 0.5f);
  }
  return {.mode = AttentionMode::kProfile, .profile = profile};
}

AttentionChoice FrozenAt(const ModelConfig& config, float threshold) {
  const auto profile = EmptyProfile(config, "frozen");
  profile->version = 1;
  FillThresholds(*profile, threshold);
  return {.mode = AttentionMode::kProfile,
          .profile = profile,
          .settings = {.uniform_floor = false, .pinned_blocks = 1}};
}

std::shared_ptr<Recorder> Submit(Engine& engine, Request request) {
  const auto recorder = std::make_shared<Recorder>();
  SubmitTo(recorder, engine, std::move(request));
  return recorder;
}

Recorder::Answer Ask(Engine& engine, Request request) {
  return Submit(engine, std::move(request))->Wait();
}

std::vector<Recorder::Answer> AskTogether(Engine& engine, std::vector<Request> requests) {
  const auto first = std::make_shared<HoldingRecorder>();
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (Request& request : requests) {
    recorders.push_back(recorders.empty() ? first : std::make_shared<Recorder>());
    SubmitTo(recorders.back(), engine, std::move(request));
  }
  first->Release();
  std::vector<Recorder::Answer> answers;
  for (const auto& recorder : recorders) answers.push_back(recorder->Wait());
  return answers;
}

void WaitUntilIdle(Engine& engine) {
  for (;;) {
    const EngineSnapshot snapshot = engine.Snapshot();
    const int32_t passes = snapshot.passes_running + snapshot.passes_waiting;
    if (snapshot.running == 0 && snapshot.waiting == 0 && passes == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace eta::testing
