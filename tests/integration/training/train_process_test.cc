// The built eta-train makes models that the engine serves, stops when it is told to, and goes on as
// if it had not.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <thread>

#include "engine/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/eventually.h"
#include "tests/testing/engine/recorder.h"
#include "tests/testing/engine/submit.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/training/train_fixture.h"
#include "training/state/training_checkpoint.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using training::TrainingCheckpoint;
using training::TrainingState;

constexpr int kRunFailed = 1;
constexpr int kStopped = 3;
constexpr int kNotAsAsked = 4;

class TrainProcessTest : public TrainCase {
 protected:
  std::vector<Json> Log(const std::string& run, const std::string& event) const {
    std::vector<Json> lines;
    std::istringstream text(ReadFile(Path(run + "/log.jsonl")));
    for (std::string line; std::getline(text, line);) {
      const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (json.is_object() && json["event"] == event) lines.push_back(json);
    }
    return lines;
  }

  TrainingState Saved() const {
    const auto checkpoint = TrainingCheckpoint::Open(Path("run/checkpoint.safetensors"));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? checkpoint->state() : TrainingState();
  }

  // What the engine answers with the model of a run.
  std::vector<int32_t> Served(const std::string& run, AttentionMode mode) const {
    EngineOptions options;
    options.model_dir = Path(run + "/model");
    options.model_name = "trained";
    options.backend.num_threads = 2;
    options.kv_pool_bytes = int64_t{8} << 20;
    const auto engine = Engine::Create(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return {};
    Request request;
    request.id = "test";
    request.prompt = std::vector<int32_t>(100, 300);
    request.output.ids = true;
    request.stopping.max_tokens = 8;
    request.stopping.ignore_eos = true;
    request.sampling.temperature = 0.0f;
    request.attention.mode = mode;
    const auto recorder = std::make_shared<Recorder>();
    const auto handle = Submit(**engine, std::move(request), recorder);
    EXPECT_TRUE(handle.ok()) << handle.status();
    if (!handle.ok()) return {};
    const Recorder::Answer answer = recorder->Wait();
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer.ids;
  }
};

TEST_F(TrainProcessTest, PretrainsToALowerLossAndTheModelIsServed) {
  const ProgramProcess::Exit exit = Run(Pretrain({{"evaluate_every", "10"}}));
  ASSERT_EQ(exit.code, 0) << exit.errors;
  const std::vector<Json> steps = Log("run", "step");
  ASSERT_EQ(steps.size(), 30u);
  EXPECT_LT(steps.back()["loss"].get<double>(), steps.front()["loss"].get<double>() - 1.0);
  EXPECT_EQ(Log("run", "evaluation").size(), 3u) << "two on the way, one at the end";
  EXPECT_EQ(Served("run", AttentionMode::kDynamic).size(), 8u);
  EXPECT_EQ(Served("run", AttentionMode::kFull).size(), 8u);
  EXPECT_THAT(ReadFile(Path("run/model/README.md")),
              AllOf(HasSubstr("| needle.txt |"), HasSubstr("union density")));
  EXPECT_THAT(ReadFile(Path("run/curves.svg")), HasSubstr("mean gate"));
}

// bad input: eta-train | SIGTERM or SIGINT in the middle | a checkpoint after the step, exit code
//   3; the second signal ends it at once | BadTrainTest.TheSecondSignalEndsItAtOnce
TEST_F(TrainProcessTest, AStoppedRunGoesOnToTheBit) {
  ASSERT_EQ(Run(Pretrain({{"output", Path("whole")}, {"retrieval", "0"}})).code, 0);
  TrainProcess first(Pretrain());
  ASSERT_TRUE(Eventually([this] { return Log("run", "step").size() >= 4; }));
  first.Signal(SIGTERM);
  first.Signal(SIGTERM);  // as `timeout` does, which signals the process and its group
  const ProgramProcess::Exit stopped = first.AwaitExit();
  ASSERT_EQ(stopped.code, 3) << stopped.errors;
  EXPECT_THAT(stopped.errors, HasSubstr("--resume goes on from here"));
  EXPECT_FALSE(std::filesystem::exists(Path("run/model")));

  std::vector<std::string> resume = Pretrain();
  resume.push_back("--resume");
  const ProgramProcess::Exit resumed = Run(resume);
  ASSERT_EQ(resumed.code, 0) << resumed.errors;
  EXPECT_THAT(resumed.errors, HasSubstr("going on after step"));
  EXPECT_EQ(ReadFile(Path("run/model/model.safetensors")),
            ReadFile(Path("whole/model/model.safetensors")));
  const std::vector<Json> one = Log("run", "step");
  const std::vector<Json> other = Log("whole", "step");
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i]["loss"], other[i]["loss"]) << i;
  // Once it is done there is nothing left to do but to write the model again.
  EXPECT_EQ(Run(resume).code, 0);
}

// bad input: eta-train | SIGKILL in the middle | it goes on from the last checkpoint
TEST_F(TrainProcessTest, AKilledRunGoesOnFromItsLastCheckpoint) {
  TrainProcess first(Pretrain({{"steps", "100000"}, {"minutes", "0"}}));
  const std::string checkpoint = Path("run/checkpoint.safetensors");
  ASSERT_TRUE(Eventually(
      [&] { return std::filesystem::exists(checkpoint) && Log("run", "step").size() >= 5; }));
  first.Signal(SIGKILL);
  first.AwaitExit();
  std::vector<std::string> resume = Pretrain({{"steps", "100000"}, {"minutes", "0"}});
  resume.push_back("--resume");
  TrainProcess second(resume);
  ASSERT_TRUE(second.AwaitErrors());
  ASSERT_TRUE(Eventually([&] { return Log("run", "step").size() >= 10; }));
  second.Signal(SIGINT);
  EXPECT_EQ(second.AwaitExit().code, 3);
  const std::vector<Json> steps = Log("run", "step");
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i]["step"], i + 1);
}

TEST_F(TrainProcessTest, AblationsAreTrained) {
  ASSERT_EQ(
      Run(Pretrain({{"steps", "3"}, {"thresholds", "static"}, {"output", Path("static")}})).code,
      0);
  EXPECT_EQ(Served("static", AttentionMode::kDynamic).size(), 8u);
  std::vector<std::string> dense = Pretrain({{"steps", "3"}, {"output", Path("dense")}});
  dense.push_back("--dense");
  ASSERT_EQ(Run(dense).code, 0);
  EXPECT_EQ(Served("dense", AttentionMode::kFull).size(), 8u);
  ASSERT_EQ(
      Run(Pretrain({{"steps", "3"}, {"gate", "additive"}, {"output", Path("additive")}})).code, 0);
  EXPECT_THAT(ReadFile(Path("additive/model/README.md")),
              AllOf(HasSubstr("does not run"), HasSubstr("| needle.txt |")));
}

// bad input: eta-train | a server that is given a model of `--attention=nsa` | it does not start;
//   its `model_type` is named
TEST_F(TrainProcessTest, ARivalIsTrainedAndMeasuredAndNotServed) {
  TrainFlags flags = {{"attention", "nsa"},
                      {"evaluate_every", "15"},
                      {"evaluation_context", "256"},
                      {"needles", "2"}};
  const ProgramProcess::Exit exit = Run(Pretrain(flags));
  ASSERT_EQ(exit.code, 0) << exit.errors;
  EXPECT_THAT(exit.errors, AllOf(HasSubstr("as trained"), HasSubstr("reads ")));
  const std::vector<Json> steps = Log("run", "step");
  ASSERT_EQ(steps.size(), 30u);
  EXPECT_LT(steps.back()["loss"].get<double>(), steps.front()["loss"].get<double>() - 1.0);
  const std::vector<Json> measured = Log("run", "evaluation");
  ASSERT_EQ(measured.size(), 2u) << "one on the way, one at the end";
  EXPECT_EQ(measured.back()["as_trained"], true);
  EXPECT_EQ(measured.back()["needles"], 2);
  EXPECT_FALSE(measured.back().contains("sparse_perplexity"));
  EXPECT_GT(measured.back()["reads"].get<double>(), 2.0) << "256 tokens are all read twice";
  EXPECT_NEAR(measured.back()["holds"].get<double>(), 2.0 + 15.0 / 256.0, 1e-9);
  EXPECT_LT(measured.back()["full_perplexity"].get<double>(),
            std::exp(steps.front()["loss"].get<double>()));
  EXPECT_THAT(ReadFile(Path("run/model/README.md")),
              AllOf(HasSubstr("Native Sparse Attention"), HasSubstr("does not run"),
                    HasSubstr("windows of 256 tokens"), HasSubstr("Needles found of 2: ")));
  EXPECT_THAT(ReadFile(Path("run/curves.svg")), HasSubstr("held-out, as trained"));

  const auto engine = Engine::Create({.model_dir = Path("run/model"), .model_name = "rival"});
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(std::string(engine.status().message()),
              HasSubstr("model_type 'nsa' is not supported"));

  // Measured once more, in windows of another size.
  flags["evaluation_context"] = "320";
  std::vector<std::string> again = Pretrain(flags);
  again.push_back("--resume");
  const ProgramProcess::Exit resumed = Run(again);
  ASSERT_EQ(resumed.code, 0) << resumed.errors;
  EXPECT_THAT(ReadFile(Path("run/model/README.md")), HasSubstr("windows of 320 tokens"));

  // Another run begins with its weights.
  const ProgramProcess::Exit next = Run(Pretrain({{"attention", "nsa"},
                                                  {"steps", "2"},
                                                  {"init", Path("run/model")},
                                                  {"output", Path("next")}}));
  ASSERT_EQ(next.code, 0) << next.errors;
  EXPECT_LT(Log("next", "step").front()["loss"].get<double>(),
            steps.front()["loss"].get<double>() - 1.0);
}

TEST_F(TrainProcessTest, AdaptsADenseModel) {
  const TinyModel dense({.has_predictor = false, .dtype = DType::kBFloat16});
  const ProgramProcess::Exit exit = Run(
      Adapt(dense.path(), {{"steps", "12"}, {"evaluate_every", "4"}, {"learning_rate", "1e-3"}}));
  ASSERT_EQ(exit.code, kNotAsAsked) << exit.errors;
  EXPECT_THAT(exit.errors, AllOf(HasSubstr("original: held-out perplexity"), HasSubstr("union"),
                                 HasSubstr("the model will be unverified")));
  const Json config = Json::parse(ReadFile(Path("run/model/config.json")));
  EXPECT_EQ(config["model_type"], "eta");
  EXPECT_EQ(config["eta_index"], "outlier");
  EXPECT_TRUE(std::filesystem::exists(Path("run/model/index_metric.safetensors")));
  EXPECT_EQ(Served("run", AttentionMode::kDynamic).size(), 8u);
  const std::vector<Json> steps = Log("run", "step");
  EXPECT_EQ(steps.front()["gate_strength"], 0.0);
  EXPECT_EQ(steps.back()["gate_strength"], 1.0);
  EXPECT_LT(steps.front()["loss"].get<double>(), 1e-3) << "it is the original still";
  EXPECT_THAT(ReadFile(Path("run/model/README.md")),
              AllOf(HasSubstr("original"), HasSubstr("There was no test text"),
                    HasSubstr("Unverified: a verdict takes 1024 tokens.")));
}

// bad input: eta-train | adapt: a model that does not keep both bounds, or is judged over too few
//   tokens | it is written; exit code 4, and the error and the card say why
TEST_F(TrainProcessTest, AnAdaptedModelIsJudgedByBothBounds) {
  const TinyModel dense({.has_predictor = false, .dtype = DType::kBFloat16});
  TrainFlags flags = {{"steps", "3"},
                      {"evaluation_windows", "13"},
                      {"union", "1"},
                      {"max_perplexity_increase", "1000"},
                      {"output", Path("kept")}};
  const ProgramProcess::Exit kept = Run(Adapt(dense.path(), flags));
  EXPECT_EQ(kept.code, 0) << kept.errors;
  EXPECT_THAT(ReadFile(Path("kept/model/README.md")), HasSubstr("Both bounds are kept."));

  flags["union"] = "0.01";
  flags["output"] = Path("lost");
  const ProgramProcess::Exit lost = Run(Adapt(dense.path(), flags));
  EXPECT_EQ(lost.code, kNotAsAsked) << lost.errors;
  for (const std::string& text : {lost.errors, ReadFile(Path("lost/model/README.md"))}) {
    EXPECT_THAT(text, HasSubstr("The bound on the block union is not kept."));
  }
  EXPECT_EQ(Served("lost", AttentionMode::kDynamic).size(), 8u) << "it is written all the same";
}

TEST_F(TrainProcessTest, TheCardsFiguresAreOfTestText) {
  const TinyModel dense({.has_predictor = false, .dtype = DType::kBFloat16});
  const std::string sample = ReadFile(Sample());
  const std::string test = Write("unseen.txt", sample.substr(sample.find('\n', sample.size() / 2)));
  const ProgramProcess::Exit exit =
      Run(Adapt(dense.path(), {{"steps", "8"}, {"evaluate_every", "4"}, {"test", test}}));
  ASSERT_EQ(exit.code, kNotAsAsked) << exit.errors;
  EXPECT_THAT(exit.errors,
              AllOf(HasSubstr("original: test perplexity"), HasSubstr("step 8: test")));
  EXPECT_THAT(ReadFile(Path("run/model/README.md")),
              AllOf(HasSubstr("| unseen.txt |"), HasSubstr("The figures are of test text"),
                    Not(HasSubstr("| needle.txt |"))));
  const std::vector<Json> measured = Log("run", "evaluation");
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_FALSE(measured.front().contains("test"));
  EXPECT_EQ(measured.back()["test"], true);

  ASSERT_EQ(
      Run(Pretrain({{"steps", "2"}, {"held_out", ""}, {"test", test}, {"output", Path("scratch")}}))
          .code,
      0);
  EXPECT_THAT(ReadFile(Path("scratch/model/README.md")), HasSubstr("The figures are of test text"));
}

// What the measurement steered is kept: the run that goes on gives the same bits.
TEST_F(TrainProcessTest, AFailedMeasurementLosesNoStep) {
  const TinyModel dense({.has_predictor = false, .dtype = DType::kBFloat16});
  TrainFlags flags = {{"steps", "12"}, {"evaluate_every", "8"}, {"learning_rate", "1e-3"}};
  flags["output"] = Path("whole");
  ASSERT_EQ(Run(Adapt(dense.path(), flags)).code, kNotAsAsked);

  flags["output"] = Path("run");
  std::filesystem::create_directories(Path("run/curves.svg/in_the_way"));
  const ProgramProcess::Exit failed = Run(Adapt(dense.path(), flags));
  EXPECT_EQ(failed.code, kRunFailed) << failed.errors;
  EXPECT_THAT(failed.errors, HasSubstr("a checkpoint was written after step 8"));
  EXPECT_EQ(Saved().step, 8);

  std::filesystem::remove_all(Path("run/curves.svg"));
  std::vector<std::string> resume = Adapt(dense.path(), flags);
  resume.push_back("--resume");
  EXPECT_EQ(Run(resume).code, kNotAsAsked);
  EXPECT_EQ(Log("run", "evaluation").size(), 2u) << "it is not made twice";
  EXPECT_EQ(ReadFile(Path("run/model/model.safetensors")),
            ReadFile(Path("whole/model/model.safetensors")));
}

TEST_F(TrainProcessTest, AFailedLogLosesNoStep) {
  TrainProcess first(Pretrain({{"steps", "100000"}, {"held_out", ""}}));
  ASSERT_TRUE(Eventually([this] { return Log("run", "step").size() >= 4; }));
  first.Signal(SIGTERM);
  ASSERT_EQ(first.AwaitExit().code, kStopped);
  const int64_t before = Saved().step;

  // A file may grow up to a limit that has room for a checkpoint, and for a few lines of this log.
  std::string log = ReadFile(Path("run/log.jsonl"));
  while (log.size() < std::filesystem::file_size(Path("run/checkpoint.safetensors")) + 100'000) {
    log += R"({"event":"evaluation","step":1,"full_perplexity":9.0,"head_density":1.0,)"
           R"("union_density":1.0,"needles":0,"full_hits":0,"sparse_hits":0})"
           "\n";
  }
  Write("run/log.jsonl", log);
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small = {.rlim_cur = log.size() + 2000, .rlim_max = limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::vector<std::string> resume = Pretrain({{"steps", "100000"}, {"held_out", ""}});
  resume.push_back("--resume");
  const ProgramProcess::Exit failed = Run(resume);
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_EQ(failed.code, kRunFailed) << failed.errors;
  EXPECT_THAT(failed.errors, AllOf(HasSubstr("log: the file cannot be written"),
                                   HasSubstr("a checkpoint was written after step")));
  EXPECT_GT(Saved().step, before);
}

// bad input: eta-train | a log, a measurement or a text that fails in the middle | a checkpoint,
//   then exit code 1; the error names both, and `--resume` goes on
TEST_F(TrainProcessTest, ATextThatFailsLosesNoStep) {
  TrainProcess run(Pretrain({{"steps", "100000"}, {"held_out", ""}}));
  ASSERT_TRUE(Eventually([this] { return Log("run", "step").size() >= 4; }));
  for (const auto& cache : std::filesystem::directory_iterator(Path("run/tokens"))) {
    std::filesystem::resize_file(cache.path(), 1);
  }
  const ProgramProcess::Exit failed = run.AwaitExit();
  EXPECT_EQ(failed.code, kRunFailed) << failed.errors;
  EXPECT_THAT(failed.errors,
              AllOf(HasSubstr("text: "), HasSubstr("a checkpoint was written after step")));
  EXPECT_GE(Saved().step, 4);
}

TEST_F(TrainProcessTest, ThePredictorAloneLeavesTheRestAsItWas) {
  const TinyModel dense({.has_predictor = false, .dtype = DType::kBFloat16});
  ASSERT_EQ(Run(Adapt(dense.path(), {{"steps", "3"}, {"train", "predictor"}})).code, kNotAsAsked);
  const auto before = SafetensorsFile::Open(dense.path() + "/model.safetensors");
  const auto after = SafetensorsFile::Open(Path("run/model/model.safetensors"));
  ASSERT_TRUE(before.ok() && after.ok());
  for (const std::string name :
       {"model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"}) {
    EXPECT_EQ(*before->Read(name), *after->Read(name)) << name;
  }
}

// The paper's appendix "Training Details and Hyperparameters".
TEST_F(TrainProcessTest, ThePapersScheduleIsAPreset) {
  const TrainFlags given = {{"steps", "2"},   {"retrieval", ""},   {"learning_rate", ""},
                            {"held_out", ""}, {"preset", "paper"}, {"beta_share", "0.5"}};
  const ProgramProcess::Exit exit = Run(Pretrain(given));
  ASSERT_EQ(exit.code, 0) << exit.errors;
  const std::map<std::string, std::string> settings = Saved().settings;
  for (const auto& [name, value] : std::map<std::string, double>{{"steps", 2},
                                                                 {"batch", 4},
                                                                 {"sequence_tokens", 64},
                                                                 {"retrieval", 0},
                                                                 {"learning_rate", 4e-4},
                                                                 {"final_rate", 0.1},
                                                                 {"warm_up", 0.03},
                                                                 {"weight_decay", 0.1},
                                                                 {"clip", 1},
                                                                 {"block_share", 0},
                                                                 {"beta_first", 1},
                                                                 {"beta", 5},
                                                                 {"beta_share", 0.5},
                                                                 {"sparsity", 5e-4},
                                                                 {"sparsity_delay", 0.075},
                                                                 {"sparsity_ramp", 0.169},
                                                                 {"sparsity_final", 0.05}}) {
    ASSERT_TRUE(settings.contains(name)) << name;
    EXPECT_EQ(std::stod(settings.at(name)), value) << name << ": flags that are given win";
  }
  EXPECT_THAT(Run({"pretrain", "--help"}).output,
              AllOf(HasSubstr("Training Details and"), HasSubstr("--steps=10000 --batch=2048")));
}

TEST_F(TrainProcessTest, StartsWithTheWeightsOfADenseModel) {
  const TinyModel dense({.has_predictor = false, .dtype = DType::kBFloat16});
  const ProgramProcess::Exit exit = Run(Pretrain({{"steps", "2"},
                                                  {"init", dense.path()},
                                                  {"width", "64"},
                                                  {"ffn", "96"},
                                                  {"head_dim", "32"}}));
  ASSERT_EQ(exit.code, 0) << exit.errors;
  EXPECT_EQ(Served("run", AttentionMode::kDynamic).size(), 8u);
}

TEST_F(TrainProcessTest, FlagsMayStandInAFile) {
  const std::string config = Write("run.conf", "[pretrain]\nsteps = 2\nlayers = 1\n");
  std::vector<std::string> arguments = Pretrain({{"steps", ""}, {"layers", ""}});
  arguments.push_back("--config=" + config);
  const ProgramProcess::Exit exit = Run(arguments);
  ASSERT_EQ(exit.code, 0) << exit.errors;
  EXPECT_EQ(Log("run", "step").size(), 2u);
  EXPECT_EQ(Json::parse(ReadFile(Path("run/model/config.json")))["num_hidden_layers"], 1);
}

}  // namespace
}  // namespace eta::testing
