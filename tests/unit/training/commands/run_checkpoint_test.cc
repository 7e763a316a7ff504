// The checkpoint of a run: what comes back of it, and what a device that is lost does to it.
#include "training/commands/run_checkpoint.h"

#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/training/forwarding_backend.h"
#include "tests/testing/training/toy_model.h"
#include "training/cpu/cpu_backend.h"

namespace eta::training {
namespace {

// Once it is lost it gives zeros, and says so when it is asked.
class LostBackend final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void Download(void* to, const void* from, size_t bytes) override {
    if (!lost) ForwardingBackend::Download(to, from, bytes);
  }
  absl::Status Finish() override {
    return lost ? absl::InternalError("the device is lost") : ForwardingBackend::Finish();
  }

  bool lost = false;
};

class RunCheckpointTest : public ::testing::Test {
 protected:
  RunCheckpointTest() {
    auto created = Trainer::Create({}, *toy_.model, nullptr, source_);
    EXPECT_TRUE(created.ok()) << created.status();
    trainer_ = *std::move(created);
  }

  absl::Status Save() {
    return SaveRun(path_, *trainer_, *toy_.parameters, position_, {{"seed", "1"}});
  }

  LostBackend backend_{cpu::MakeBackend(1)};
  const testing::ToyModel toy_ =
      testing::MakeToy(testing::ToySpec(), backend_, {.sequences = 2, .length = 8});
  testing::PhraseSource source_{17, 2, 8};
  std::unique_ptr<Trainer> trainer_;
  const RunPosition position_ = {.sequences = 960, .seconds = 1.5, .measured = 40};
  const TempFolder folder_;
  const std::string path_ = folder_.path() + "/checkpoint.safetensors";
};

TEST_F(RunCheckpointTest, ThePositionComesBack) {
  ASSERT_TRUE(Save().ok());
  const auto team = RankTeam::Create({.backend = {.name = "cpu", .num_threads = 1},
                                      .spec = testing::ToySpec(),
                                      .limits = {.sequences = 2, .length = 8}})
                        .value();
  const auto checkpoint = TrainingCheckpoint::Open(path_).value();
  const auto position = RestoreRun(checkpoint, *team, {{"seed", "1"}});
  ASSERT_TRUE(position.ok()) << position.status();
  EXPECT_EQ(position->sequences, 960);
  EXPECT_EQ(position->seconds, 1.5);
  EXPECT_EQ(position->measured, 40);
}

TEST_F(RunCheckpointTest, ADeviceThatIsLostKeepsTheOneBefore) {
  ASSERT_TRUE(Save().ok());
  const std::string before = ReadFile(path_);
  backend_.lost = true;
  EXPECT_EQ(Save().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReadFile(path_), before);
}

}  // namespace
}  // namespace eta::training
