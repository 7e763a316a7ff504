// A table of measured numbers, each with what it was measured on, its 95 % interval and, where
// there is one, the number that the paper reports for its own models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibration/figures/figure.h"
#include "calibration/solvers/interval.h"

namespace eta {

struct TableColumn {
  std::string name;       // lower case with underscores: also the name in JSON
  std::string unit = {};  // "nats", "tokens", "%"...; empty: none
  int digits = 3;         // behind the point
  bool percent = false;   // values are shares [0, 1] and shown times 100 (Percent)
};

inline TableColumn Percent(std::string name, int digits = 1) {
  return {.name = std::move(name), .unit = "%", .digits = digits, .percent = true};
}

struct TableCell {
  std::optional<double> value = std::nullopt;  // nothing: not measured, or undefined
  // 95 %; nothing: too little was measured for one.
  std::optional<std::pair<double, double>> interval = std::nullopt;
  int64_t n = 0;                               // what was measured; 0: it stands in the row
  std::optional<double> paper = std::nullopt;  // in the column's unit as `value` is
};

struct TableRow {
  std::vector<std::string> labels;  // as many as Table::keys
  std::vector<TableCell> cells;     // as many as Table::columns
  int64_t n = 0;                    // what its cells were measured on (Table::counted); 0: unsaid
};

struct Table {
  std::string name;  // as the command line has it
  std::string title;
  std::string method;        // sentences: what was measured, on what, how intervals are made
  std::string paper = {};    // which table of the paper, and of which models; empty: there is none
  std::string counted = {};  // what n counts: "tokens", "windows"...
  std::vector<std::pair<std::string, std::string>> settings = {};  // name and value, for the record
  std::vector<std::string> keys = {};  // names of the labels: "attention", "layer"...
  std::vector<TableColumn> columns = {};
  std::vector<TableRow> rows = {};
  // Sentences that belong on top of a report: what was found, losses first.
  std::vector<std::string> findings = {};
  std::vector<Figure> figures = {};
};

// A share with its Wilson interval. REQUIRES: 0 <= hits <= n.
TableCell ShareCell(int64_t hits, int64_t n);
// exp of a mean loss with its interval: a perplexity, or a ratio of two.
TableCell ExpCell(const MeanInterval& loss, int64_t n);
inline TableCell PlainCell(double value, int64_t n = 0) {
  return {.value = value, .interval = std::nullopt, .n = n};
}
inline TableCell WithPaper(TableCell cell, std::optional<double> paper) {
  cell.paper = paper;
  return cell;
}

// For people: aligned columns, "value ± half" or "value (low..high)", the paper's number behind it.
std::string TableText(const Table& table);
// A section for a page. `svg`: the path of the figures' picture beside it; empty: none.
std::string TableMarkdown(const Table& table, const std::string& svg);
// One JSON object. Values that were not measured are null.
std::string TableJson(const Table& table);
// The figures as one picture; empty if the table has none.
std::string TableSvg(const Table& table);

}  // namespace eta
