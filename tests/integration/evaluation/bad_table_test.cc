// The built eta-eval refuses what it cannot measure in one line, with exit code 2.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/calibration/evaluation_fixture.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::HasSubstr;
using testing::TinyModel;

class BadTableTest : public EvaluationTest {
 protected:
  std::string Model() const { return " --backend=reference --model=" + model_.path() + " "; }
  // Small enough to be measured in a moment.
  static std::string Small() {
    return " --text=" ETA_SOURCE_DIR "/deploy/samples/needle.txt --context=96 --samples=1 --quick ";
  }
  void Refused(const std::string& arguments, const std::string& named) {
    const std::string errors = Path("errors.txt");
    const int status = std::system(
        (ETA_BINARY_DIR "/eta-eval " + arguments + " > /dev/null 2> " + errors).c_str());
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 2) << arguments;
    std::stringstream text;
    text << std::ifstream(errors).rdbuf();
    EXPECT_THAT(text.str(), HasSubstr(named)) << arguments;
    EXPECT_EQ(std::ranges::count(text.str(), '\n'), 1) << text.str();
  }

  TinyModel model_;
};

// bad input: eta-eval | table, report: a table that is none, flags missing, out of range or no
//   numbers | exit code 2, one line that names the flag
TEST_F(BadTableTest, TablesAndFlagsThatAreNone) {
  Refused("table" + Model(), "NAME");
  Refused("table everything" + Model(), "everything");
  Refused("table quality", "--model");
  Refused("table quality --model=/nowhere", "checkpoint");
  Refused("table quality --context=-1" + Model(), "--context");
  Refused("table quality --samples=x" + Model(), "--samples");
  Refused("table quality --questions=-1" + Model(), "--questions");
  Refused("report" + Model(), "--output");
  Refused("report --output=" + Path("r") + " --table=everything" + Model(), "everything");
}

// bad input: eta-eval | table: a text that is absent, of another kind, cut, or that fills no
//   window; no evaluation sets | exit code 2, `text` or `context` named
TEST_F(BadTableTest, TextsThatCannotBeRead) {
  Refused("table quality --text=" + Path("absent.txt") + Model(), "text");
  Refused("table quality --text=" + Write("a.csv", "a,b") + Model(), "text");
  Refused("table quality --text=" +
              Write("cut.txt.xz",
                    "\xFD"
                    "7zXZ") +
              Model(),
          "text");
  Refused("table quality --text=" + Write("short.txt", "short") + " --context=96" + Model(),
          "context");
  Refused("table quality --data=" + Path("absent") + Model(), "text");
}

TEST_F(BadTableTest, QuestionsThatAreNone) {
  const std::string data = Path("data");
  std::filesystem::create_directory(data);
  for (const char* name :
       {"wikitext2.txt.xz", "wiki.jsonl.xz", "books.jsonl.xz", "code.jsonl.xz", "legal.jsonl.xz"}) {
    std::filesystem::copy(std::string(ETA_SOURCE_DIR "/tests/evaluation/") + name,
                          data + "/" + name);
  }
  std::ofstream(data + "/arc_easy.jsonl.xz") << "no archive";
  Refused("table quality --context=96 --samples=1 --data=" + data + Model(), "text");
}

TEST_F(BadTableTest, AReportThatHasNoPlace) {
  Refused("report --table=blocksize --output=" + Write("file", "") + Small() + Model(), "output");
  Refused("report --table=blocksize --output=" + Write("other", "") + "/in" + Small() + Model(),
          "output");
}

TEST_F(BadTableTest, ADamagedSectionIsMeasuredAgain) {
  const std::string output = Path("report");
  const std::string command = "report --table=frozen --output=" + output + Small() + Model();
  ASSERT_EQ(ExitCode(command), 0);
  std::ofstream(output + "/frozen.md") << "<!-- eta-eval 0 -->\nchanged\n";
  ASSERT_EQ(ExitCode(command), 0);
  std::stringstream page;
  page << std::ifstream(output + "/report.md").rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("calibrated"));
}

TEST_F(BadTableTest, ModelsThatATableSaysNothingOf) {
  const TinyModel plain({.has_predictor = false});
  const std::string model = " --backend=reference --model=" + plain.path();
  Refused("table masking" + model + Small(), "model: has no gate");
  Refused("table contextuality" + model + Small(), "model: predicts no thresholds");
  EXPECT_EQ(
      ExitCode("report --table=masking --table=sinks --output=" + Path("plain") + model + Small()),
      0);
}

TEST_F(BadTableTest, FormsOfAnotherModel) {
  const TinyModel deeper({.num_layers = 3});
  Refused("table weights --against=" + deeper.path() + Small() + Model(), "against: ");
  Refused("table weights --against=int5" + Small() + Model(), "against: int5: ");
}

TEST_F(BadTableTest, SamplesThatSayNothing) {
  for (const char* table :
       {"masking", "tail", "alignment", "sinks", "layers", "contextuality", "index"}) {
    const std::string json = Path(std::string(table) + ".json");
    EXPECT_EQ(ExitCode("table " + std::string(table) + Model() + "--json=" + json +
                       " --text=" ETA_SOURCE_DIR "/deploy/samples/needle.txt --context=1 "
                       "--samples=1"),
              0)
        << table;
    std::stringstream text;
    text << std::ifstream(json).rdbuf();
    EXPECT_THAT(text.str(), HasSubstr("\"table\": \"" + std::string(table) + "\""));
    EXPECT_EQ(text.str().find("nan"), std::string::npos) << text.str();
  }
}

TEST_F(BadTableTest, WaysOfAttendingWithNumbersThatAreNone) {
  const std::string perplexity =
      "perplexity --text=" ETA_SOURCE_DIR "/deploy/samples/needle.txt --context=96" + Model();
  for (const char* way : {"window:0", "streaming:-1", "bigbird:16", "bigbird:16:0", "h2o:16",
                          "h2o:16:2", "window:nan"}) {
    Refused(perplexity + " --attention=" + way, "attention");
  }
  Refused(perplexity + " --attention=dynamic+block_size=6", "block_size");
  Refused(perplexity + " --attention=dynamic+block_size=256", "block_size");
  Refused(perplexity + " --attention=dynamic+index=flat", "index");
  const TinyModel plain({.has_predictor = false});
  const std::string of_plain = "perplexity --text=" ETA_SOURCE_DIR
                               "/deploy/samples/needle.txt --context=64 --model=" +
                               plain.path() + " --attention=";
  Refused(of_plain + "full+confirm=true", "attention: full attention");
  Refused(of_plain + "topk:0.5+confirm=true", "confirm: must be false");
  Refused(of_plain + "full+prefill_attention=sparse", "attention: full attention");
  Refused(of_plain + "topk:0.5+prefill_attention=sparse", "prefill_attention: must be full");
}

TEST_F(BadTableTest, ProofsThatCannotBeMade) {
  const std::string prove = "prove --text=" ETA_SOURCE_DIR "/deploy/samples/needle.txt --quick" +
                            Model() + " --output=" + Path("proof");
  Refused("prove" + Model(), "--output");
  Refused(prove + " --attention=constants:0.5", "attention");
  Refused(prove + " --attention=dynamic+block_size=4", "attention");
  Refused(prove + " --attention=profile:" + Path("absent.json"), "absent.json");
  Refused(prove + " --length=100", "length");
  Refused(prove + " --macro_points=nan", "--macro_points");
  Refused(prove + " --speed=-1", "--speed");
  Refused(prove + " --traffic=" + Path("absent.jsonl"), "traffic");
  Refused(prove + " --traffic=" + Write("a.jsonl", "{}\n"), "traffic");
  Refused(prove + " --text=" + Path("absent.txt"), "text");
  Refused("prove --text=" ETA_SOURCE_DIR "/deploy/samples/needle.txt --quick" + Model() +
              " --output=" + Write("file", ""),
          "output");
}

}  // namespace
}  // namespace eta
