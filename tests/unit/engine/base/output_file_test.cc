// A file that is there whole, or as it was.
#include "engine/base/files/output_file.h"

#include <filesystem>
#include <string>

#include "engine/base/files/input_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

class OutputFileTest : public ::testing::Test {
 protected:
  std::string Path() const { return folder_.path() + "/file"; }
  int Files() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }

  const TempFolder folder_;
};

TEST_F(OutputFileTest, IsThereOnceItIsCommitted) {
  folder_.Write("file", "old");
  folder_.Write("file.partial", "of a process that was killed");
  {
    auto file = OutputFile::Create(Path()).value();
    ASSERT_TRUE(file.Write("one, two").ok());
    ASSERT_TRUE(file.WriteAt(0, std::as_bytes(std::span("ONE", 3))).ok());
    EXPECT_EQ(ReadFile(Path()), "old");
    ASSERT_TRUE(file.Commit().ok());
  }
  EXPECT_EQ(ReadFile(Path()), "ONE, two");
  EXPECT_EQ(Files(), 1);
}

TEST_F(OutputFileTest, LeavesNothingWithoutCommit) {
  folder_.Write("file", "old");
  {
    auto file = OutputFile::Create(Path());
    ASSERT_TRUE(file->Write("new").ok());
    const OutputFile moved = *std::move(file);
  }
  EXPECT_EQ(ReadFile(Path()), "old");
  EXPECT_EQ(Files(), 1);
}

TEST_F(OutputFileTest, WhatTheSystemSaysIsTold) {
  EXPECT_TRUE(absl::IsNotFound(OutputFile::Create(folder_.path() + "/absent/file").status()));
  ASSERT_TRUE(WriteWholeFile(Path(), "text").ok());
  EXPECT_EQ(ReadFile(Path()), "text");
  // A device that is always full.
  std::filesystem::create_symlink("/dev/full", folder_.path() + "/full.partial");
  const absl::Status full = WriteWholeFile(folder_.path() + "/full", "text");
  EXPECT_THAT(full, FailsSaying(absl::StatusCode::kResourceExhausted, "No space left"));
}

}  // namespace
}  // namespace eta
