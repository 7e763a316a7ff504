// A proof's log: what was measured stays, a line that was cut is measured again, and the log of
// another proof is not taken.
#include "calibration/evaluation/prove/proof_log.h"

#include <filesystem>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ProofKey kKey = {{"model", "a"}, {"attention", "b"}, {"seed", "1"}};

class ProofLogTest : public ::testing::Test {
 protected:
  std::string Folder() const { return folder_.path() + "/proof"; }
  std::string File() const { return Folder() + "/units.jsonl"; }
  std::unique_ptr<ProofLog> Open(const ProofKey& key = kKey) const {
    auto log = ProofLog::Open(Folder(), key);
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  // Two units.
  void Fill() const {
    const auto log = Open();
    ASSERT_EQ(log->Add("one", {.numbers = {{"full", 0.1}}, .texts = {{"output", "a \"b\"\n"}}}),
              absl::OkStatus());
    ASSERT_EQ(log->Add("two", {.numbers = {{"full", 1.0}, {"sparse", 0.5}}}), absl::OkStatus());
  }
  void Rewrite(const std::string& text) const {
    std::ofstream(File(), std::ios::binary | std::ios::trunc) << text;
  }

  const TempFolder folder_;
};

TEST_F(ProofLogTest, GivesBackWhatWasAdded) {
  Fill();
  const auto log = Open();
  const ProofUnit* one = log->Find("one", {"full"});
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->numbers.at("full"), 0.1) << "to the bit";
  EXPECT_EQ(one->texts.at("output"), "a \"b\"\n");
  EXPECT_NE(log->Find("two", {"full", "sparse"}), nullptr);
  EXPECT_EQ(log->Find("one", {"full", "sparse"}), nullptr) << "it lacks a number";
  EXPECT_EQ(log->Find("three", {}), nullptr);
}

// bad input: eta-eval | prove: a log whose last line was cut | that unit is measured again
TEST_F(ProofLogTest, GoesOnBehindALineThatWasCut) {
  Fill();
  const std::string text = ReadFile(File());
  const size_t second = text.rfind('\n', text.size() - 2) + 1;
  for (const size_t end : {text.size() - 1, second + 7, second + 1}) {
    Rewrite(text.substr(0, end));
    const auto log = Open();
    EXPECT_NE(log->Find("one", {"full"}), nullptr);
    EXPECT_EQ(log->Find("two", {"full"}), nullptr) << end;
    ASSERT_EQ(log->Add("two", {.numbers = {{"full", 1.0}, {"sparse", 0.5}}}), absl::OkStatus());
    EXPECT_EQ(ReadFile(File()), text) << end;
  }
  for (const std::string cut : {"", "{\"proof\": \"12"}) {
    Rewrite(cut);
    EXPECT_EQ(Open()->Find("one", {}), nullptr);
    EXPECT_NE(Open(), nullptr) << "it has a beginning again";
  }
}

// bad input: eta-eval | prove: a folder with the proof of another model, way of attending, seed or
//   samples | exit code 2, `output` and what differs named; nothing is changed
TEST_F(ProofLogTest, RefusesTheLogOfAnotherProofByName) {
  Fill();
  const std::string text = ReadFile(File());
  ProofKey other = kKey;
  other[1].second = "c";
  const absl::Status status = ProofLog::Open(Folder(), other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("output: "), HasSubstr("another attention"),
                                      HasSubstr("'b'"), HasSubstr("'c'")));
  other = kKey;
  other.emplace_back("traffic", "x");
  EXPECT_THAT(ProofLog::Open(Folder(), other).status().message(), HasSubstr("another traffic"));
  EXPECT_EQ(ReadFile(File()), text);
}

// bad input: eta-eval | prove: a log with lines of something else, an output that is a file, a
//   folder that another proof writes to | exit code 2, `output` and the line named
TEST_F(ProofLogTest, RefusesWhatIsNoLog) {
  Fill();
  const std::string text = ReadFile(File());
  for (const char* line :
       {"not json", "[1]", "{\"full\": 1}", "{\"unit\": 3}", "{\"unit\": \"x\", \"full\": 1e300}",
        "{\"unit\": \"x\", \"full\": [1]}", "{\"unit\": \"x\", \"full\": null}"}) {
    Rewrite(text + line + "\n");
    const absl::Status status = ProofLog::Open(Folder(), kKey).status();
    EXPECT_THAT(status, FailsOn(kInvalid, "output")) << line;
    EXPECT_THAT(status.message(), HasSubstr("line 4")) << line;
  }
  Rewrite(text);
  {
    const auto log = Open();
    EXPECT_THAT(ProofLog::Open(Folder(), kKey).status(), FailsOn(kInvalid, "output"));
  }
  EXPECT_NE(Open(), nullptr);
  EXPECT_THAT(ProofLog::Open(File(), kKey).status(), FailsOn(kInvalid, "output"));
}

TEST_F(ProofLogTest, WhatIsNotFiniteIsAnError) {
  const auto log = Open();
  const std::string text = ReadFile(File());
  EXPECT_EQ(log->Add("nan", {.numbers = {{"loss", NAN}}}).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReadFile(File()), text);
}

}  // namespace
}  // namespace eta
