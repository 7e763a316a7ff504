// eta-bench masks: what answers that a format binds cost a step. All streams write JSON, known
// token by token, in turns without formats and with a schema that binds some of them. So nothing
// but masks differs.
//
// With --device_microseconds the device takes a given time and computes nothing: what is left of a
// step is the host's. With --random the model is random, of a LLaMA's shape with about 1.5B
// weights, and has the vocabulary of --model.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/format/library/grammar_library.h"
#include "engine/format/vocabulary.h"
#include "kernels/system/usable_cpus.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/bench/eta_bench/model.h"
#include "tests/bench/eta_bench/replay/fixed_time_backend.h"
#include "tests/bench/eta_bench/replay/replay_engine.h"

namespace eta::bench {
namespace {

struct Options {
  DeviceFlags device;
  std::string model = "models/smollm2-eta/SmolLM2-135M-Instruct-ETA.Q8_0.gguf";
  bool random = false;
  int32_t device_microseconds = 0;
  int32_t streams = 64;
  int32_t bound = 32;
  CaseSizes sizes = {.context = 512, .answer = 192};
  int32_t turns = 4;
};

constexpr char kSchema[] = R"({"type": "array", "items": {"type": "object", "properties": {
  "name": {"type": "string"}, "kind": {"enum": ["tool", "part", "paint"]},
  "count": {"type": "integer"}, "price": {"type": "number"},
  "tags": {"type": "array", "items": {"type": "string"}}, "in_stock": {"type": "boolean"}},
  "required": ["name", "kind", "count", "price", "tags", "in_stock"],
  "additionalProperties": false}})";

// Of that schema, without an end.
std::string Inventory(std::mt19937_64& random, size_t bytes) {
  const auto one_of = [&](std::initializer_list<const char*> words) {
    return words.begin()[random() % words.size()];
  };
  std::string text = "[";
  while (text.size() < bytes) {
    absl::StrAppend(&text, text.size() > 1 ? ", " : "", R"({"name": ")",
                    one_of({"small", "large", "old"}), " ",
                    one_of({"hammer", "hinge", "varnish", "screwdriver"}), R"(", "kind": ")",
                    one_of({"tool", "part", "paint"}), R"(", "count": )", random() % 1000,
                    R"(, "price": )", random() % 100, ".", 10 + random() % 90, R"(, "tags": [")",
                    one_of({"steel", "brass"}), R"(", ")", one_of({"indoors", "for the garden"}),
                    R"("], "in_stock": )", one_of({"true", "false"}), "}");
  }
  return text;
}

std::shared_ptr<const CompiledFormat> Compile(const Tokenizer& tokenizer) {
  const auto library = Require(MakeGrammarLibrary(FormatVocabularyOf(tokenizer)));
  const AnswerFormat format{.kind = AnswerFormatKind::kJsonSchema, .source = kSchema};
  return Require(library->Read(format, Require(library->Compile(format))));
}

std::vector<ReplayCase> Cases(const Options& options, const Tokenizer& tokenizer) {
  CaseSizes sizes = options.sizes;
  sizes.count = options.streams;
  std::vector<ReplayCase> cases =
      RandomCases(static_cast<int32_t>(tokenizer.vocab_size()), sizes, options.device.seed);
  std::mt19937_64 random(options.device.seed);
  for (ReplayCase& replayed : cases) {
    constexpr size_t kTokenBytes = 8;  // on average at most
    const size_t tokens = replayed.answer.size();
    replayed.kind = "json";
    replayed.answer =
        Require(tokenizer.Encode(Inventory(random, kTokenBytes * tokens), /*add_bos=*/false));
    if (replayed.answer.size() < tokens) Fail("an answer is too short");
    replayed.answer.resize(tokens);
  }
  return cases;
}

std::shared_ptr<Backend> Open(const Options& options) {
  std::shared_ptr<Backend> backend = OpenBackend(options.device);
  if (options.device_microseconds == 0) return backend;
  // About what the product of logits and the draws are of a small model's step.
  const std::chrono::microseconds step(options.device_microseconds);
  return std::make_shared<FixedTimeBackend>(backend, step - step / 16, step / 16);
}

Json Run(const Options& options) {
  if (options.bound > options.streams) Fail("--bound: more than --streams");
  const std::shared_ptr<Backend> backend = Open(options);
  const Checkpoint checkpoint = Require(Checkpoint::Open(options.model));
  cpu::Workers workers(ReadUsableCpus().threads());
  const int32_t vocab = Require(ParseModelConfig(checkpoint.config_json())).vocab_size;
  const RandomModel random({.layers = 22, .vocab = vocab, .plain = true}, options.device.seed,
                           workers);
  ReplayEngineOptions engine_options;
  engine_options.streams = options.streams;
  engine_options.max_step_tokens = std::max(engine_options.max_step_tokens, options.streams);
  engine_options.tokens = options.sizes.context + options.sizes.answer + 1;
  const TensorSource& source = options.random ? static_cast<const TensorSource&>(random)
                                              : static_cast<const TensorSource&>(checkpoint);
  ReplayEngine engine(backend, source, checkpoint.tokenizer_files(), engine_options);
  const std::vector<ReplayCase> free = Cases(options, engine.tokenizer());
  std::vector<ReplayCase> bound = free;
  const auto format = Compile(engine.tokenizer());
  for (size_t i = 0; i < static_cast<size_t>(options.bound); ++i) bound[i].format = format;

  ReplayRun runs[2];
  for (int32_t turn = 0; turn < 2 * options.turns; ++turn) {
    const bool binds = turn % 2 == 1;
    ReplayRun run = engine.Run(binds ? bound : free, options.streams, {});
    for (size_t i = 0; i < free.size(); ++i) {
      if (run.answers[i].ids != free[i].answer) Fail("an answer is not what was replayed");
    }
    runs[binds].Add(run);
  }
  Json report = {{"bench", "masks"},
                 {"backend", backend->description()},
                 {"streams", options.streams},
                 {"rows", Json::array()}};
  const double step = Median(runs[0].step_seconds);
  for (const ReplayRun& run : runs) {
    const double median = Median(run.step_seconds);
    Json& row = report["rows"].emplace_back();
    row = {{"bound", &run == runs ? 0 : options.bound},
           {"steps", run.steps},
           {"step_microseconds", 1e6 * median},
           {"p90_microseconds", 1e6 * Quantile(run.step_seconds, 0.9)},
           {"host_microseconds", nullptr},
           {"masks_microseconds", 1e6 * (median - step)},
           {"share", median / step - 1.0}};
    if (options.device_microseconds > 0) {
      row["host_microseconds"] = 1e6 * median - options.device_microseconds;
    }
  }
  return report;
}

void Print(const Json& report) {
  std::printf("%s, %d streams\n\n", report["backend"].get<std::string>().c_str(),
              report["streams"].get<int>());
  PrintTable(report["rows"], {{"bound", "bound"},
                              {"steps", "steps"},
                              {"step, us", "step_microseconds", 1},
                              {"p90", "p90_microseconds", 1},
                              {"of the host", "host_microseconds", 1},
                              {"of masks", "masks_microseconds", 1},
                              {"%", "share", 2, 100.0}});
}

}  // namespace

void AddMasksCommand(CLI::App& app, Command& chosen) {
  if (!HasGrammarLibrary()) return;
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("masks", "Steps without and with bound answers in turns");
  AddDeviceFlags(*command, options->device);
  const auto count = [&](const char* flag, int32_t& value, const char* what, int least, int most) {
    command->add_option(flag, value, what)->check(CLI::Range(least, most))->capture_default_str();
  };
  command->add_option("--model", options->model, "Checkpoint")->capture_default_str();
  command->add_flag("--random", options->random, "A random model with the vocabulary of --model");
  count("--device_microseconds", options->device_microseconds,
        "More than 0: a device that computes nothing, and takes so long for a step", 0, 1000000);
  count("--streams", options->streams, "At a time", 1, 1024);
  count("--bound", options->bound, "Of the streams, those that a schema binds", 1, 1024);
  count("--context", options->sizes.context, "Tokens of each prompt, at random", 1, 1 << 16);
  count("--answer", options->sizes.answer, "Tokens of each answer", 1, 1 << 14);
  count("--turns", options->turns, "Without formats, and as often with", 1, 1000);
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
