// eta-bench replay: what drafts are worth. Known answers are written without and with them, some
// cases at a time in turns, so that both meet the same machine: quotes of a long text, edits
// of files of code, and a text's own continuation, which repeats nothing. Of several turns the
// fastest counts, of each way. What is accepted of a
// draft is what a model would have accepted that writes these answers. Where a row's bits do not
// depend on the rows beside it, log-probabilities and counts must be the same with drafts.
//
// A random model, of the shape of LLaMA's 8B, writes random answers, of which drafts are right as
// often as --right says. With --filled its prompts are not computed but filled with random keys and
// values, so that long ones take no time.
//
// With --speculation=self the model drafts by sparser reads: the rows that make drafts are computed
// and cost what they cost. Of a real model the answers are its own then, since what it drafts says
// nothing of others'; of a random one what is drafted is replaced as --right says.
//
// Beside what was gained stands what the bytes allow: weights once a step, each row's keys, values
// and records once, and those of all rows of a sequence once in a step.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "kernels/system/usable_cpus.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/bench/eta_bench/model.h"
#include "tests/bench/eta_bench/replay/replay_cases.h"
#include "tests/bench/eta_bench/replay/replay_engine.h"

namespace eta::bench {
namespace {

struct Options {
  DeviceFlags device;
  std::string model = "models/eta-27m";
  std::vector<std::string> text = {"deploy/samples/needle.txt"};
  std::vector<std::string> code = {"engine/batching/scheduler.cc", "engine/batching/sequence.cc",
                                   "engine/model/model.cc", "engine/front/request_intake.cc"};
  Speculation speculation = Speculation::kPrompt;
  bool random = false;
  bool filled = false;
  int32_t layers = 32;  // of the random model
  double right = 0.6;
  std::vector<int32_t> length = {0};  // of every draft; 0: as many as pay
  std::vector<int32_t> streams = {1, 8};
  CaseSizes sizes;
  int32_t turns = 1;
  ReplayEngineOptions engine;
};

// Drafts that are right with a given probability, token by token.
class ScriptDrafts final : public DraftSource {
 public:
  ScriptDrafts(const ReplayCase& replayed, double right, int32_t vocab_size)
      : replayed_(replayed), right_(right), vocab_size_(vocab_size) {}

  int32_t Propose(std::span<const int32_t> tokens, std::span<int32_t> draft) override {
    const size_t from = tokens.size() - replayed_.prompt.size();
    for (size_t i = 0; i < draft.size(); ++i) {
      const size_t at = std::min(from + i, replayed_.answer.size() - 1);
      const bool good = std::uniform_real_distribution<>()(random_) < right_;
      draft[i] = (replayed_.answer[at] + (good ? 0 : 1)) % vocab_size_;
    }
    return DraftLength::kLongMatch;
  }

 private:
  const ReplayCase& replayed_;
  const double right_;
  const int32_t vocab_size_;
  std::mt19937_64 random_{1};
};

// How many answers differ in anything but their times.
int64_t Differences(const ReplayRun& a, const ReplayRun& b) {
  int64_t differences = 0;
  for (size_t i = 0; i < a.answers.size(); ++i) {
    const ReplayedAnswer& one = a.answers[i];
    const ReplayedAnswer& other = b.answers[i];
    differences += one.ids != other.ids || one.logprobs != other.logprobs ||
                   !(one.attention == other.attention);
  }
  return differences;
}

class Replay {
 public:
  Replay(const Options& options, ReplayEngine& engine, std::vector<ReplayCase> cases)
      : options_(options), engine_(engine), cases_(std::move(cases)) {}

  // Each kind by itself, or all of them mixed, where there is more than one stream.
  void Measure(int32_t streams, int32_t length, Json& rows) const {
    if (streams > 1) return rows.push_back(Row("mixed", streams, length, Mixed()));
    for (size_t begin = 0; begin < cases_.size();) {
      size_t end = begin;
      while (end < cases_.size() && cases_[end].kind == cases_[begin].kind) ++end;
      const std::vector<ReplayCase> kind(cases_.begin() + static_cast<std::ptrdiff_t>(begin),
                                         cases_.begin() + static_cast<std::ptrdiff_t>(end));
      rows.push_back(Row(kind[0].kind, streams, length, kind));
      begin = end;
    }
  }

 private:
  // The first of each kind, then the second.
  std::vector<ReplayCase> Mixed() const {
    std::vector<std::pair<int, const ReplayCase*>> places;
    int of_kind = 0;
    for (size_t i = 0; i < cases_.size(); ++i) {
      of_kind = i > 0 && cases_[i].kind == cases_[i - 1].kind ? of_kind + 1 : 0;
      places.emplace_back(of_kind, &cases_[i]);
    }
    std::ranges::stable_sort(places, {}, &std::pair<int, const ReplayCase*>::first);
    std::vector<ReplayCase> mixed;
    for (const auto& place : places) mixed.push_back(*place.second);
    return mixed;
  }

  DraftOptions Drafts(std::span<const ReplayCase> cases, int32_t length, bool on) const {
    DraftOptions drafts{.speculation = on ? options_.speculation : Speculation::kOff,
                        .exact = engine_.backend().exact_rows(),
                        .length = length};
    if (options_.random) {
      drafts.source = [this, cases](const Request& request) {
        return std::make_unique<ScriptDrafts>(cases[*request.sampling.seed - 1], options_.right,
                                              engine_.config().vocab_size);
      };
    }
    return drafts;
  }

  Json Row(const std::string& kind, int32_t asked, int32_t length,
           std::span<const ReplayCase> cases) const {
    const int32_t streams = std::min(asked, static_cast<int32_t>(cases.size()));
    ReplayRun off, on;
    std::vector<double> speedups;
    std::vector<double> row_bytes;
    int64_t answered = 0;
    int64_t differences = 0;
    // The last cases of a turn have fewer beside them, and do not count then.
    const size_t batch = streams == 1 ? 1 : 4 * static_cast<size_t>(streams);
    for (size_t i = 0; i < cases.size(); i += batch) {
      const auto some = cases.subspan(i, std::min(batch, cases.size() - i));
      if (i > 0 && std::ssize(some) < streams) break;
      ReplayRun fastest[2];
      for (int32_t turn = 0; turn < options_.turns; ++turn) {
        const bool first = (i + static_cast<size_t>(turn)) % 2 == 0;
        ReplayRun runs[2];
        for (const bool with : {first, !first}) {
          runs[with] = engine_.Run(some, streams, Drafts(some, length, with));
        }
        if (!options_.engine.own_answers) Check(some, runs[0]);
        differences += Differences(runs[0], runs[1]);
        for (const bool with : {false, true}) {
          if (turn > 0 && runs[with].tokens_per_second() <= fastest[with].tokens_per_second()) {
            continue;
          }
          fastest[with] = std::move(runs[with]);
        }
      }
      row_bytes.push_back(fastest[0].row_bytes());
      for (const ReplayedAnswer& answer : fastest[1].answers) answered += std::ssize(answer.ids);
      off.Add(fastest[0]);
      on.Add(fastest[1]);
      speedups.push_back(fastest[1].tokens_per_second() / fastest[0].tokens_per_second());
    }
    if (engine_.backend().exact_rows() && differences > 0) Fail("drafts changed answers");
    const auto per = [](int64_t part, int64_t whole) {
      return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
    };
    return {{"kind", kind},
            {"streams", streams},
            {"length", length},
            {"cases", cases.size()},
            {"tokens", on.tokens},
            {"tokens_per_s", off.tokens_per_second()},
            {"drafts_tokens_per_s", on.tokens_per_second()},
            {"drafted", on.drafts.drafted},
            {"accepted", on.drafts.accepted},
            {"acceptance", per(on.drafts.accepted, on.drafts.drafted)},
            {"tokens_per_step", per(on.tokens, on.steps * streams)},
            {"made", on.drafts.made},
            {"made_share", per(on.drafts.kv_bytes_made, on.drafts.made) / Median(row_bytes)},
            {"bytes_allow", BytesAllow(on.drafts, answered, streams, Median(row_bytes))},
            {"speedup", on.tokens_per_second() / off.tokens_per_second()},
            {"median_speedup", Median(speedups)},
            {"least_speedup", *std::ranges::min_element(speedups)},
            {"answers_that_differ", differences}};
  }

  // The speed-up if time went by bytes.
  double BytesAllow(const DraftCounts& drafts, int64_t tokens, int32_t streams,
                    double row_bytes) const {
    const double weights = engine_.step_bytes() / streams;
    const auto steps = static_cast<double>(tokens - drafts.steps_saved);
    const double bytes = steps * (weights + row_bytes) +
                         static_cast<double>(drafts.made) * weights +
                         static_cast<double>(drafts.kv_bytes_made);
    return static_cast<double>(tokens) * (weights + row_bytes) / bytes;
  }

  static void Check(std::span<const ReplayCase> cases, const ReplayRun& run) {
    for (size_t i = 0; i < cases.size(); ++i) {
      if (run.answers[i].ids != cases[i].answer) Fail("an answer is not what was replayed");
    }
  }

  const Options& options_;
  ReplayEngine& engine_;
  const std::vector<ReplayCase> cases_;
};

std::vector<ReplayCase> TextCases(const Options& options, const Tokenizer& tokenizer) {
  std::string text;
  for (const std::string& path : options.text) text += ReadText(path);
  std::vector<std::string> files;
  for (const std::string& path : options.code) files.push_back(ReadText(path));
  std::vector<ReplayCase> cases = Quotes(tokenizer, text, options.sizes);
  const auto add = [&](const std::vector<ReplayCase>& more) {
    cases.insert(cases.end(), more.begin(), more.end());
  };
  add(Edits(tokenizer, files, options.sizes));
  add(FreeTexts(tokenizer, text, options.sizes));
  return cases;
}

Json Run(const Options& given) {
  Options options = given;
  const double bandwidth = MeasureReadBandwidth(options.device);
  options.engine.streams = *std::ranges::max_element(options.streams);
  options.engine.tokens = options.sizes.context + options.sizes.answer + 1;
  options.engine.full_attention = options.engine.full_attention || options.random;
  options.engine.own_answers = options.speculation == Speculation::kSelf && !options.random;
  if (options.filled && (!options.random || options.sizes.count > options.engine.streams)) {
    Fail("--filled: needs --random, and no more cases than streams");
  }
  std::shared_ptr<Backend> backend = OpenBackend(options.device);
  Json report = BeginReport("replay", options.device, *backend, bandwidth);
  cpu::Workers workers(ReadUsableCpus().threads());
  std::unique_ptr<TensorSource> source;
  TokenizerFiles files;
  if (options.random) {
    const ModelShape shape = {.layers = options.layers,
                              .width = 4096,
                              .ffn = 14336,
                              .vocab = 128256,
                              .heads = 32,
                              .kv_heads = 8,
                              .head_dim = 128,
                              .plain = true};
    source = std::make_unique<RandomModel>(shape, options.device.seed, workers);
  } else {
    auto checkpoint = std::make_unique<Checkpoint>(Require(Checkpoint::Open(options.model)));
    files = checkpoint->tokenizer_files();
    source = std::move(checkpoint);
  }
  ReplayEngine engine(backend, *source, files, options.engine);
  const std::vector<ReplayCase> cases =
      options.random ? RandomCases(engine.config().vocab_size, options.sizes, options.device.seed)
                     : TextCases(options, engine.tokenizer());
  if (options.filled) engine.Fill(cases, options.device.seed, workers);
  const Replay replay(options, engine, cases);
  report["model"] = options.random ? "random LLaMA of " + std::to_string(options.layers) + " layers"
                                   : options.model;
  report["kv_dtype"] = options.engine.kv_dtype;
  report["weights"] = options.engine.weights;
  report["exact"] = engine.backend().exact_rows();
  report["rows"] = Json::array();
  for (const int32_t streams : options.streams) {
    for (const int32_t length : options.length) replay.Measure(streams, length, report["rows"]);
  }
  return report;
}

void Print(const Json& report) {
  std::printf(
      "%s, %s, KV %s, weights %s; the same answers with drafts: %s\n\n",
      report["description"].get<std::string>().c_str(), report["model"].get<std::string>().c_str(),
      report["kv_dtype"].get<std::string>().c_str(), report["weights"].get<std::string>().c_str(),
      report["exact"].get<bool>() ? "checked" : "not promised");
  PrintTable(report["rows"], {{"answers", "kind"},
                              {"streams", "streams"},
                              {"length", "length"},
                              {"cases", "cases"},
                              {"tokens", "tokens"},
                              {"tokens/s", "tokens_per_s", 1},
                              {"with drafts", "drafts_tokens_per_s", 1},
                              {"drafted", "drafted"},
                              {"right %", "acceptance", 1, 100.0},
                              {"tokens a step", "tokens_per_step", 2},
                              {"made", "made"},
                              {"of a row", "made_share", 3},
                              {"x", "speedup", 2},
                              {"bytes allow", "bytes_allow", 2},
                              {"median", "median_speedup", 2},
                              {"least", "least_speedup", 2},
                              {"differ", "answers_that_differ"}});
}

}  // namespace

void AddReplayCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("replay", "Known answers, without drafts and with drafts in turns");
  AddDeviceFlags(*command, options->device);
  command->add_option("--model", options->model, "Folder of the checkpoint")->capture_default_str();
  command
      ->add_option("--text", options->text,
                   "Plain texts, one behind the other, for quotes and free text")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--code", options->code, "Files of code, for edits")->delimiter(',');
  command->add_flag("--random", options->random,
                    "A random model in the shape of LLaMA's 8B, full attention, random answers");
  command->add_option("--layers", options->layers, "With --random: layers of the model")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  command->add_flag("--filled", options->filled,
                    "With --random: prompts are filled with random keys and values, not computed");
  const std::map<std::string, Speculation> sources = {{"off", Speculation::kOff},
                                                      {"prompt", Speculation::kPrompt},
                                                      {"self", Speculation::kSelf},
                                                      {"auto", Speculation::kAuto}};
  command
      ->add_option("--speculation", options->speculation,
                   "Where drafts come from; off: nowhere, which tells by how much runs differ")
      ->transform(CLI::CheckedTransformer(sources))
      ->default_str("prompt");
  command->add_option("--right", options->right, "With --random: the share of right drafts")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      ->add_option("--length", options->length,
                   "Tokens of every draft, one after another; 0: as many as pay")
      ->delimiter(',')
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command->add_option("--streams", options->streams, "One: each kind by itself; more: all mixed")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--cases", options->sizes.count, "Of each kind")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_option("--context", options->sizes.context, "Most tokens of a prompt")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  command->add_option("--answer", options->sizes.answer, "Most tokens of an answer")
      ->check(CLI::Range(8, 1 << 16))
      ->capture_default_str();
  command->add_option("--turns", options->turns, "Of each case, of which the fastest counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--max_step_tokens", options->engine.max_step_tokens)
      ->check(CLI::Range(64, 16384))
      ->capture_default_str();
  command->add_option("--kv_dtype", options->engine.kv_dtype)
      ->check(CLI::IsMember({"float32", "float16", "bfloat16", "float8_e4m3"}))
      ->capture_default_str();
  command->add_option("--weights", options->engine.weights)
      ->check(CLI::IsMember({"native", "int8", "int4"}))
      ->capture_default_str();
  command->add_flag("--full", options->engine.full_attention,
                    "Full attention; else the model's own");
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
