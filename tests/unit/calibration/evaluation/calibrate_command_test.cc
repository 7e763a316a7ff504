// eta-eval calibrate as a process: what it writes is a profile, what it says is what the profile
// does, and eta-eval perplexity runs it with its own operating point.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "calibration/calibrate/promises.h"
#include "calibration/profiles/profile_json.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;

struct Outcome {
  int exit_code = -1;
  std::string text;  // stdout and stderr
};

Outcome EtaEval(const std::string& arguments) {
  Outcome outcome;
  std::FILE* pipe = popen((ETA_BINARY_DIR "/eta-eval " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    outcome.text.push_back(static_cast<char>(c));
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

class CalibrateCommandTest : public ::testing::Test {
 protected:
  // Eight documents of a story, and the first once more.
  void SetUp() override {
    const std::string story = ReadFile(ETA_SOURCE_DIR "/deploy/samples/needle.txt");
    constexpr size_t kDocuments = 8;
    const size_t bytes = story.size() / kDocuments;
    std::string lines;
    for (size_t i = 0; i <= kDocuments; ++i) {
      const Json line{{"text", story.substr(i % kDocuments * bytes, bytes)}};
      // A cut may fall into a character.
      lines += line.dump(-1, ' ', false, Json::error_handler_t::ignore) + "\n";
    }
    folder_.Write("story.jsonl", lines);
  }
  // Eight sequences of ten blocks, one of each document.
  std::string CalibrateStrictly(const std::string& flags) const {
    return "calibrate --model=" + model_.path() + " --threads=2 --text=" + Path("story.jsonl") +
           " --sequences=8 --sequence_tokens=160 --kv_dtype=float32 " + flags;
  }
  std::string Calibrate(const std::string& flags) const {
    return CalibrateStrictly("--allow_loss " + flags);
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  PortableProfile Read(const std::string& name) const {
    const auto profile = ProfileFromJson(ReadFile(Path(name)));
    EXPECT_EQ(profile.status(), absl::OkStatus());
    return *profile;
  }
  Json Perplexity(const std::string& flags) const {
    const Outcome outcome =
        EtaEval("perplexity --model=" + model_.path() +
                " --threads=2 --text=" ETA_SOURCE_DIR
                "/deploy/samples/needle.txt --context=160 --prefill=80 --windows=2 --json "
                "--kv_dtype=float32 " +
                flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    return Json::parse(outcome.text)["results"][0];
  }

  const TinyModel model_;
  const TempFolder folder_;
};

TEST_F(CalibrateCommandTest, WritesTheProfileThatItReports) {
  const Outcome outcome = EtaEval(Calibrate(
      "--name=story --label=domain=stories --union_density=0.7 --z_recall=0.9 --json --output=" +
      Path("story.json")));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  const PortableProfile profile = Read("story.json");
  EXPECT_EQ(profile.name, "story");
  EXPECT_EQ(profile.content.labels.at("domain"), "stories");
  EXPECT_THAT(profile.content.z_per_head, SizeIs(8));
  const ProfileEvidence& evidence = profile.content.evidence;
  EXPECT_EQ(evidence.calibration_sequences + evidence.held_out_sequences, 8);
  EXPECT_EQ(evidence.held_out_sequences, 2);
  EXPECT_EQ(evidence.equal_documents, 1);
  const Json report = Json::parse(outcome.text);
  EXPECT_EQ(report["held_out"]["frozen"]["perplexity"], profile.content.evidence.perplexity_frozen);
  EXPECT_EQ(report["reached"]["union_density"], profile.content.reached.union_density);
  EXPECT_NEAR(profile.content.reached.union_density, 0.7, 0.01);
  EXPECT_EQ(report["held_out"]["full"]["union_density"], 1.0);
  EXPECT_TRUE(report["held_out"]["dynamic"].is_object());
  EXPECT_EQ(report["documents"]["equal"], 1);
  EXPECT_EQ(report["documents"]["held_out"], evidence.held_out_documents);
  EXPECT_TRUE(report["relative_threshold"].is_null());
  ASSERT_TRUE(evidence.single_needles.has_value());
  EXPECT_EQ(report["single_needles"]["asked"], evidence.single_needles->asked);
  EXPECT_EQ(report["unverified"], true);
  const auto kept = KeptShare(AllNeedles(evidence));
  EXPECT_EQ(report["kept_needles"],
            kept ? Json({{"low", kept->low}, {"high", kept->high}}) : Json());
}

TEST_F(CalibrateCommandTest, PrintsATableOfBeforeAndAfter) {
  const Outcome outcome = EtaEval(Calibrate("--match_dynamic --output=" + Path("p.json")));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  for (const char* part : {"match_dynamic", "held out; 1 left out", "full ", "dynamic ", "frozen ",
                           "union", "reads own", "single needles: ",
                           "\nunverified: 158 tokens were measured, a verdict needs 1024\n"}) {
    EXPECT_THAT(outcome.text, HasSubstr(part));
  }
  // A model of noise may find none.
  EXPECT_THAT(
      outcome.text,
      AnyOf(HasSubstr("\nneedles kept: "),
            HasSubstr("\nfull attention found none of 12 needles: retrieval was not judged")));
}

TEST_F(CalibrateCommandTest, PerplexityRunsAProfileAtItsOperatingPoint) {
  ASSERT_EQ(EtaEval(Calibrate("--match_dynamic --offset=0.5 --z=2.25 --floor=none --output=" +
                              Path("p.json")))
                .exit_code,
            0);
  const std::string profile = "--attention=profile:" + Path("p.json");
  const Json own = Perplexity(profile);
  EXPECT_EQ(own["offset"], 0.5);
  EXPECT_EQ(own["z"], 2.25);
  EXPECT_EQ(own["floor"], "none");
  const Json said = Perplexity(profile + " --offset=0.5 --z=2.25 --floor=none");
  EXPECT_EQ(own["loss"], said["loss"]);
  const Json other = Perplexity(profile + " --offset=0 --z=1 --floor=uniform");
  EXPECT_EQ(other["offset"], 0.0);
  EXPECT_NE(own["loss"], other["loss"]);
}

TEST_F(CalibrateCommandTest, PerplexityTakesZPerHeadUnlessOneIsGiven) {
  ASSERT_EQ(
      EtaEval(Calibrate("--match_dynamic --z_recall=0.8 --output=" + Path("p.json"))).exit_code, 0);
  PortableProfile profile = Read("p.json");
  const auto write = [&](float z) {
    profile.content.z_per_head.assign(8, z);
    folder_.Write("same.json", *ProfileToJson(profile));
  };
  const std::string own = "--attention=profile:" + Path("p.json");
  const std::string same = "--attention=profile:" + Path("same.json");
  EXPECT_THAT(Perplexity(own)["z_per_head"], SizeIs(8));
  write(3.0f);
  const Json wide = Perplexity(same);
  EXPECT_EQ(wide["union_density"], Perplexity(own + " --z=3")["union_density"]);
  EXPECT_EQ(wide["loss"], Perplexity(own + " --z=3")["loss"]);
  write(0.0f);
  EXPECT_LT(Perplexity(same)["union_density"], wide["union_density"]);
}

TEST_F(CalibrateCommandTest, ProfilesOfAnotherModelAreRefused) {
  ASSERT_EQ(EtaEval(Calibrate("--match_dynamic --output=" + Path("p.json"))).exit_code, 0);
  const TinyModel other({.seed = 2});
  const Outcome outcome =
      EtaEval("perplexity --model=" + other.path() +
              " --text=" ETA_SOURCE_DIR
              "/deploy/samples/needle.txt --context=64 --windows=1 --attention=profile:" +
              Path("p.json"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.text, HasSubstr("model_fingerprint"));
}

TEST_F(CalibrateCommandTest, BadInputWritesNothing) {
  const std::string output = " --output=" + Path("none.json");
  for (const char* flags : {"--union_density=0.5 --head_density=0.5", "--union_density=nan",
                            "--union_density=0.5 --match_dynamic", "--dynamic_union_density=-1",
                            "--match_dynamic --held_out=0.95", "--match_dynamic --z_recall=2",
                            "--match_dynamic --name=Bad", "--match_dynamic --label=nothing",
                            "--match_dynamic --retained_mass=0.9", "--retained_mass=0.9",
                            "--match_dynamic --min_retrieval=0", "--match_dynamic --min_mass=0",
                            "--match_dynamic --sink_blocks=-1", "--match_dynamic --reads=all",
                            "--match_dynamic --sequence_tokens=32", "--match_dynamic --sequences=1",
                            "--match_dynamic --text=missing.txt", "--union_density=0.01"}) {
    const Outcome outcome = EtaEval(Calibrate(flags + output));
    EXPECT_EQ(outcome.exit_code, 2) << flags << "\n" << outcome.text;
    EXPECT_FALSE(std::filesystem::exists(Path("none.json"))) << flags;
  }
  // The default target judges a perplexity, for which 158 tokens are too few.
  const Outcome few = EtaEval(Calibrate(output));
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_THAT(few.text, HasSubstr("at least 1024 tokens"));
  const Outcome unverified = EtaEval(CalibrateStrictly("--match_dynamic" + output));
  EXPECT_EQ(unverified.exit_code, 2);
  EXPECT_THAT(unverified.text, HasSubstr("have 158; send more text"));
  EXPECT_FALSE(std::filesystem::exists(Path("none.json")));
  EXPECT_EQ(EtaEval(Calibrate("--match_dynamic")).exit_code, 2);
  EXPECT_EQ(EtaEval(Calibrate("--match_dynamic --output=" + Path("no/such/folder.json"))).exit_code,
            2);
}

}  // namespace
}  // namespace eta::testing
