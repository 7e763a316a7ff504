// The built eta-train makes models that the engine serves, stops when it is told to, and goes on as
// if it had not.
#include <algorithm>
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

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

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
  EXPECT_THAT(ReadFile(Path("additive/model/README.md")), HasSubstr("does not run"));
}

TEST_F(TrainProcessTest, AdaptsADenseModel) {
  const TinyModel dense({.has_predictor = false, .dtype = DType::kBFloat16});
  const ProgramProcess::Exit exit = Run(
      Adapt(dense.path(), {{"steps", "12"}, {"evaluate_every", "4"}, {"learning_rate", "1e-3"}}));
  ASSERT_EQ(exit.code, 0) << exit.errors;
  EXPECT_THAT(exit.errors, AllOf(HasSubstr("original: perplexity"), HasSubstr("union")));
  const Json config = Json::parse(ReadFile(Path("run/model/config.json")));
  EXPECT_EQ(config["model_type"], "eta");
  EXPECT_EQ(config["eta_index"], "outlier");
  EXPECT_TRUE(std::filesystem::exists(Path("run/model/index_metric.safetensors")));
  EXPECT_EQ(Served("run", AttentionMode::kDynamic).size(), 8u);
  const std::vector<Json> steps = Log("run", "step");
  EXPECT_EQ(steps.front()["gate_strength"], 0.0);
  EXPECT_EQ(steps.back()["gate_strength"], 1.0);
  EXPECT_LT(steps.front()["loss"].get<double>(), 1e-3) << "it is the original still";
  EXPECT_THAT(ReadFile(Path("run/model/README.md")), HasSubstr("original"));
}

TEST_F(TrainProcessTest, ThePredictorAloneLeavesTheRestAsItWas) {
  const TinyModel dense({.has_predictor = false, .dtype = DType::kBFloat16});
  ASSERT_EQ(Run(Adapt(dense.path(), {{"steps", "3"}, {"train", "predictor"}})).code, 0);
  const auto before = SafetensorsFile::Open(dense.path() + "/model.safetensors");
  const auto after = SafetensorsFile::Open(Path("run/model/model.safetensors"));
  ASSERT_TRUE(before.ok() && after.ok());
  for (const std::string name :
       {"model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"}) {
    EXPECT_EQ(*before->Read(name), *after->Read(name)) << name;
  }
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
