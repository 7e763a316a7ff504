// A report measures what it does not have yet, and nothing twice.
#include "calibration/evaluation/tables/report.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

int g_measured = 0;

absl::StatusOr<Table> MeasureOne(TableBench& bench) {
  ++g_measured;
  bench.Progress(1, 2);
  Table table = {.name = "one",
                 .title = "The first",
                 .method = "Counted.",
                 .keys = {"key"},
                 .columns = {{.name = "value", .digits = 0}}};
  table.rows = {{.labels = {"a"}, .cells = {PlainCell(g_measured)}}};
  table.findings = {"It was measured."};
  table.figures = {LineChart{.title = "chart", .lines = {}}};
  return table;
}
absl::StatusOr<Table> MeasureNothing(TableBench&) {
  return absl::FailedPreconditionError("the model has no gate");
}
absl::StatusOr<Table> Fail(TableBench&) {
  return absl::InternalError("broken");
}

constexpr TableKind kOne = {.name = "one", .help = "", .measure = MeasureOne};
constexpr TableKind kNothing = {.name = "nothing", .help = "", .measure = MeasureNothing};
constexpr TableKind kFailing = {.name = "failing", .help = "", .measure = Fail};

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() { g_measured = 0; }

  std::unique_ptr<TableBench> Bench(const TableSettings& settings = {}) const {
    return *TableBench::Load({.model_dir = model_.path(), .backend = {.name = "reference"}},
                             settings);
  }
  absl::Status Write(std::vector<const TableKind*> tables, const std::string& key = "key",
                     const TableSettings& settings = {}) {
    return WriteReport(*Bench(settings),
                       {.folder = folder_.path() + "/report",
                        .title = "A report",
                        .key = key,
                        .tables = tables,
                        .progress = [this](double share, const std::string&) { share_ = share; }});
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(folder_.path() + "/report/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  testing::TinyModel model_;
  TempFolder folder_;
  double share_ = -1.0;
};

TEST_F(ReportTest, HasFindingsOnTopAndSaysWhatIsMissing) {
  ASSERT_EQ(Write({&kOne, &kNothing}), absl::OkStatus());
  const std::string page = Read("report.md");
  EXPECT_THAT(page,
              AllOf(HasSubstr("# A report\n\n- It was measured.\n"), HasSubstr("## The first"),
                    HasSubstr("![The first](one.svg)"), HasSubstr("Not measured"),
                    HasSubstr("`nothing`: the model has no gate"), Not(HasSubstr("<!--"))));
  EXPECT_THAT(page, ContainsRegex("Settings: model [0-9a-f]{12}; defaults offset 0, z 1.5, .*"
                                  "block_size 16, index moment\\."));
  EXPECT_THAT(Read("one.json"), HasSubstr("\"table\": \"one\""));
  EXPECT_THAT(Read("one.svg"), HasSubstr("<svg"));
  EXPECT_EQ(share_, 0.5) << "the other table measured nothing";
}

TEST_F(ReportTest, WhatItHasIsNotMeasuredAgain) {
  ASSERT_EQ(Write({&kOne}), absl::OkStatus());
  const std::string page = Read("report.md");
  ASSERT_EQ(Write({&kOne}), absl::OkStatus());
  EXPECT_EQ(g_measured, 1);
  EXPECT_EQ(Read("report.md"), page);
  ASSERT_EQ(Write({&kOne}, "another model"), absl::OkStatus());
  EXPECT_EQ(g_measured, 2);
  ASSERT_EQ(Write({&kOne}, "another model", {.samples = 3}), absl::OkStatus());
  EXPECT_EQ(g_measured, 3);
  ASSERT_EQ(Write({&kOne}, "another model", {.samples = 3, .questions = 3}), absl::OkStatus());
  EXPECT_EQ(g_measured, 4);
}

// bad input: eta-eval | report: a section that is cut, changed, or of other settings or another
//   model | it is measured again | BadTableTest.ADamagedSectionIsMeasuredAgain
TEST_F(ReportTest, ASectionThatIsCutOrForeignIsMeasuredAgain) {
  ASSERT_EQ(Write({&kOne}), absl::OkStatus());
  for (const std::string text : {"", "<!-- eta-eval", "something else"}) {
    std::ofstream(folder_.path() + "/report/one.md") << text;
    ASSERT_EQ(Write({&kOne}), absl::OkStatus());
    EXPECT_THAT(Read("report.md"), HasSubstr("## The first")) << text;
  }
  EXPECT_EQ(g_measured, 4);
}

TEST_F(ReportTest, AnErrorEndsItAndWhatWasMeasuredStays) {
  EXPECT_TRUE(absl::IsInternal(Write({&kOne, &kFailing})));
  EXPECT_EQ(Read("report.md"), "");
  ASSERT_EQ(Write({&kOne}), absl::OkStatus());
  EXPECT_EQ(g_measured, 1);
}

// bad input: eta-eval | report: an output that is a file, or lies in one | exit code 2, `output`
//   named; nothing is measured | BadTableTest.AReportThatHasNoPlace
TEST_F(ReportTest, AnOutputThatIsAFileIsRefused) {
  folder_.Write("report", "a file");
  EXPECT_EQ(GetErrorDetail(Write({&kOne})).field, "output");
  EXPECT_EQ(g_measured, 0);
}

}  // namespace
}  // namespace eta
