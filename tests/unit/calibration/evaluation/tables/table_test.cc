// How tables are shown.
#include "calibration/evaluation/tables/table.h"

#include <cmath>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Table Example() {
  Table table = {.name = "quality",
                 .title = "Quality",
                 .method = "What was measured.",
                 .paper = "Table 1, 1.45B",
                 .counted = "tokens",
                 .settings = {{"context", "2048"}},
                 .keys = {"attention"},
                 .columns = {{.name = "perplexity", .digits = 2},
                             {.name = "union", .unit = "%", .digits = 1, .percent = true}}};
  table.rows = {
      {.labels = {"full"},
       .cells = {WithPaper(ExpCell({.mean = std::log(20.0), .half_width = 0.01}, 512), 19.35),
                 PlainCell(1.0)}},
      {.labels = {"quest|0.2"}, .cells = {ExpCell({.mean = std::log(21.5)}, 512), {}}}};
  table.findings = {"Quest reads more."};
  return table;
}

TEST(Table, TextHasIntervalsAndThePapersNumbers) {
  const std::string text = TableText(Example());
  EXPECT_THAT(text, AllOf(HasSubstr("20.00 ± 0.20 [19.35]"), HasSubstr("21.50"), HasSubstr("100.0"),
                          HasSubstr("(Table 1, 1.45B)"), HasSubstr("> Quest reads more."),
                          HasSubstr("context 2048"), HasSubstr("n, tokens"), HasSubstr("512")));
}

TEST(Table, AColumnInWhichNoRowSaysAnythingIsLeftOut) {
  Table table = Example();
  table.columns.push_back({.name = "accuracy"});
  for (TableRow& row : table.rows) row.cells.emplace_back();
  for (const std::string& text : {TableText(table), TableMarkdown(table, "")}) {
    EXPECT_THAT(text,
                AllOf(HasSubstr("union"), HasSubstr("n, tokens"), Not(HasSubstr("accuracy"))));
  }
  EXPECT_THAT(TableJson(table), HasSubstr("accuracy"));
  table.rows[1].cells[2] = PlainCell(0.0);
  EXPECT_THAT(TableText(table), HasSubstr("accuracy"));
}

TEST(Table, LongSentencesAreWrapped) {
  Table table = Example();
  for (int i = 0; i < 60; ++i) table.method += " word";
  std::istringstream lines(TableText(table));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
}

TEST(Table, MarkdownEscapesAndNamesThePicture) {
  Table table = Example();
  EXPECT_THAT(TableMarkdown(table, "q.svg"),
              AllOf(HasSubstr("| quest\\|0.2 |"), HasSubstr("|---|---:|"),
                    HasSubstr("\n> Quest reads more.\n"), Not(HasSubstr("q.svg"))));
  table.figures.push_back(LineChart{.title = "a", .lines = {}});
  EXPECT_THAT(TableMarkdown(table, "q.svg"), HasSubstr("![Quality](q.svg)"));
  EXPECT_THAT(TableSvg(table), HasSubstr("<svg"));
  EXPECT_EQ(TableSvg(Example()), "");
}

TEST(Table, JsonKeepsSharesAndSaysWhatWasNotMeasured) {
  const auto json = nlohmann::json::parse(TableJson(Example()));
  EXPECT_EQ(json["table"], "quality");
  EXPECT_EQ(json["rows"][0]["attention"], "full");
  EXPECT_NEAR(json["rows"][0]["perplexity"]["value"].get<double>(), 20.0, 1e-9);
  EXPECT_EQ(json["rows"][0]["perplexity"]["paper"], 19.35);
  EXPECT_EQ(json["rows"][0]["perplexity"]["n"], 512);
  EXPECT_EQ(json["rows"][0]["union"]["value"], 1.0);
  EXPECT_TRUE(json["rows"][1]["union"]["value"].is_null());
  EXPECT_TRUE(json["rows"][1]["perplexity"]["interval"].is_null());
  EXPECT_EQ(json["columns"][1]["unit"], "share");
}

// Expected: R, prop.test(8, 10, correct = FALSE).
TEST(Table, IntervalsOfShares) {
  const TableCell share = ShareCell(8, 10);
  EXPECT_DOUBLE_EQ(*share.value, 0.8);
  EXPECT_NEAR(share.interval->first, 0.4901625, 1e-6);
  EXPECT_NEAR(share.interval->second, 0.9433178, 1e-6);
  EXPECT_FALSE(ShareCell(0, 0).value.has_value());
  EXPECT_GT(ShareCell(0, 9).interval->second, 0.2);
  EXPECT_NEAR(ShareCell(0, 9).interval->first, 0.0, 1e-12);
}

}  // namespace
}  // namespace eta
