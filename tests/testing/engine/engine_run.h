// Short helpers for tests that drive a real engine on a tiny model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/front/engine.h"
#include "tests/testing/engine/recorder.h"
#include "tests/testing/engine/submit.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta::testing {

// Options for `model`: 2 threads, a pool of 32 MiB, float32 KV. The backend is the CPU, or the one
// in ETA_TEST_BACKEND, with exact products. "deferring" is the CPU with steps that are prepared and
// run as on a GPU. Only requests that ask for drafts have some: automatic drafts come and go with
// the time that steps take, and rows with them.
EngineOptions OptionsFor(const TinyModel& model);
EngineOptions ReferenceOptionsFor(const TinyModel& model);
void UseReference(EngineOptions& options);

// How far a log-probability may move with the other rows of the batch. The bound is 0, except on
// cuda, where the order of sums depends on the size of the step.
double BatchTolerance();

// The options with a pool of `num_blocks` blocks.
EngineOptions WithBlocks(EngineOptions options, int32_t num_blocks);

// Fails the test if the engine cannot be made.
std::unique_ptr<Engine> Start(const EngineOptions& options, Observer* observer = nullptr);

// `length` token ids, the same for the same `seed`.
std::vector<int32_t> Prompt(int32_t length, uint32_t seed);

// A greedy request for `max_tokens` ids. No end-of-text token cuts it short.
Request Greedy(std::vector<int32_t> prompt, int32_t max_tokens);

// A profile of that name, with one threshold for every head; of a model of relative thresholds with
// one for all.
AttentionChoice Frozen(const ModelConfig& config, const std::string& name);
// Version 1 of a profile "frozen", with `threshold` for every head. One block is pinned and nothing
// has a floor, so that a threshold above all bounds loses what older blocks hold.
AttentionChoice FrozenAt(const ModelConfig& config, float threshold);
inline constexpr float kAboveAllBounds = 50.0f;  // of a tiny model

std::shared_ptr<Recorder> Submit(Engine& engine, Request request);
// Submits and waits.
Recorder::Answer Ask(Engine& engine, Request request);
// Submits all requests and waits for all. The first starts alone, and the others are there for the
// next step. So batches and preemptions do not depend on the machine.
std::vector<Recorder::Answer> AskTogether(Engine& engine, std::vector<Request> requests);

// Waits until no sequence and no pass is left and the snapshot shows this.
void WaitUntilIdle(Engine& engine);

}  // namespace eta::testing
