// A run on disk: what comes back, and what does not.
#include "training/state/training_checkpoint.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"

namespace eta::training {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TrainingCheckpointTest : public ::testing::Test {
 protected:
  std::string Path() const { return folder_.path() + "/checkpoint.safetensors"; }
  absl::Status Save(const TrainingState& state, const TensorShapes& shapes, float first = 1.0f) {
    return WriteTrainingCheckpoint(Path(), state, shapes,
                                   [first](const std::string&, std::span<float> out) {
                                     std::iota(out.begin(), out.end(), first);
                                     return absl::OkStatus();
                                   });
  }
  std::string Refusal() const {
    return std::string(TrainingCheckpoint::Open(Path()).status().message());
  }

  const TensorShapes shapes_ = {{"value.a", {2, 3}}, {"first.a", {2, 3}}, {"value.b", {}}};
  const TrainingState state_ = {.step = 12,
                                .sequences = 960,
                                .skipped_steps = 1,
                                .seconds = 1.0 / 3.0,
                                .schedule = {{"weight", 0.1}, {"tiny", 4.9e-324}},
                                .settings = {{"steps", "100"}, {"model", "{\"width\": 64}"}}};
  const TempFolder folder_;
};

TEST_F(TrainingCheckpointTest, ComesBackToTheBit) {
  ASSERT_TRUE(Save(state_, shapes_, 0.1f).ok());
  const auto checkpoint = TrainingCheckpoint::Open(Path()).value();
  EXPECT_EQ(checkpoint.state(), state_);
  EXPECT_TRUE(checkpoint.CheckTensors(shapes_).ok());
  std::vector<float> values(6);
  ASSERT_TRUE(checkpoint.Read("value.a", values).ok());
  EXPECT_EQ(values[1], 0.1f + 1.0f);
}

// bad input: eta-train | --resume: a checkpoint that is empty, cut, or changed by a bit | exit code
//   2, named; the file is left as it is | BadTrainTest.ACheckpointThatIsCutOrDamaged
TEST_F(TrainingCheckpointTest, CutAndDamagedFilesAreNamed) {
  ASSERT_TRUE(Save(state_, shapes_).ok());
  const std::string whole = ReadFile(Path());
  for (size_t size = 0; size < whole.size(); size += 7) {
    folder_.Write("checkpoint.safetensors", whole.substr(0, size));
    EXPECT_FALSE(TrainingCheckpoint::Open(Path()).ok()) << size;
  }
  std::string flipped = whole;
  flipped[whole.size() - 70] ^= 1;  // of the last tensor before the digest
  folder_.Write("checkpoint.safetensors", flipped);
  EXPECT_THAT(Refusal(), HasSubstr("damaged"));
}

// bad input: eta-train | --resume: a file that is no checkpoint of a run | exit code 2, what it is
//   or lacks named | BadTrainTest.ACheckpointThatIsSomethingElse
TEST_F(TrainingCheckpointTest, ForeignFilesAreNamed) {
  const float one = 1.0f;
  const std::map<std::string, TensorToWrite> tensors = {
      {"a", {DType::kFloat32, {}, std::as_bytes(std::span(&one, 1))}}};
  ASSERT_TRUE(WriteSafetensors(Path(), {{"format", "pt"}}, tensors).ok());
  EXPECT_THAT(Refusal(), HasSubstr("the file's format is 'pt'"));
  ASSERT_TRUE(WriteSafetensors(Path(), {}, tensors).ok());
  EXPECT_THAT(Refusal(), HasSubstr("the file's format is not named"));
  ASSERT_TRUE(WriteSafetensors(Path(), {{"format", "eta-train checkpoint 1"}}, tensors).ok());
  EXPECT_THAT(Refusal(), HasSubstr("no state"));
}

// bad input: eta-train | --resume: a checkpoint of another model, text, schedule or seed | exit
//   code 2; what differs is named with both values, ten at most |
//   BadTrainTest.ACheckpointOfAnotherRun
TEST_F(TrainingCheckpointTest, WhatDiffersIsNamed) {
  ASSERT_TRUE(Save(state_, shapes_).ok());
  const auto checkpoint = TrainingCheckpoint::Open(Path()).value();
  const absl::Status tensors =
      checkpoint.CheckTensors({{"value.a", {3, 2}}, {"value.b", {}}, {"value.c", {1}}});
  EXPECT_EQ(tensors.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(tensors.message()),
      AllOf(HasSubstr("'value.a' is [2, 3] in the checkpoint and [3, 2] here"),
            HasSubstr("'value.c' is missing"), HasSubstr("'first.a' is not of this model")));
  const absl::Status settings =
      CheckSettings(state_.settings, {{"steps", "200"}, {"model", "{\"width\": 64}"}, {"x", "1"}});
  EXPECT_EQ(settings.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(settings.message()),
              AllOf(HasSubstr("steps is '100' in the checkpoint and '200' here"),
                    HasSubstr("x is absent in the checkpoint and '1' here")));
  EXPECT_TRUE(CheckSettings(state_.settings, state_.settings).ok());
}

TEST_F(TrainingCheckpointTest, NumbersThatAreNotFiniteDoNotTakeThePlaceOfGoodOnes) {
  ASSERT_TRUE(Save(state_, shapes_).ok());
  const std::string good = ReadFile(Path());
  EXPECT_TRUE(absl::IsDataLoss(Save(state_, shapes_, NAN)));
  TrainingState nan = state_;
  nan.schedule["weight"] = NAN;
  EXPECT_FALSE(Save(nan, shapes_).ok());
  EXPECT_EQ(ReadFile(Path()), good);
}

// bad input: eta-train | a disk without room for a checkpoint | the last one is kept whole; at the
//   end exit code 1 | BadTrainTest.ADiskWithoutRoomKeepsTheLastCheckpoint
TEST_F(TrainingCheckpointTest, AFullDiskKeepsTheOneBefore) {
  ASSERT_TRUE(Save(state_, shapes_).ok());
  const std::string good = ReadFile(Path());
  // No file may grow beyond this: what a disk without space says, but for the number of the error.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = 1 << 16, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status full = Save(state_, {{"value.a", {1 << 16}}});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(full.ok());
  EXPECT_THAT(std::string(full.message()), HasSubstr("cannot be written"));
  EXPECT_EQ(ReadFile(Path()), good);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1)
      << "nothing is left of it";
}

TEST(TrainingState, OddFieldsAreNamed) {
  const std::string good = *WriteTrainingState({.step = 3});
  ASSERT_TRUE(ParseTrainingState(good).ok());
  for (const auto& [from, to] :
       {std::pair{"\"step\": 3", "\"step\": -3"}, std::pair{"\"step\": 3", "\"step\": 3.5"},
        std::pair{"\"step\": 3", "\"steps\": 3"}, std::pair{"\"seconds\": 0.0", "\"seconds\": -1"},
        std::pair{"\"schedule\": {}", "\"schedule\": {\"a\": \"b\"}"},
        std::pair{"\"settings\": {}", "\"settings\": {\"a\": 1}"},
        std::pair{"\"settings\": {}", "\"settings\": []"}}) {
    std::string bad = good;
    const size_t at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from << " in " << good;
    bad.replace(at, std::string(from).size(), to);
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTrainingState(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace eta::training
