// Tables for people: aligned text, and Markdown.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "calibration/evaluation/tables/table.h"
#include "engine/base/utf8_characters.h"

namespace eta {
namespace {

constexpr size_t kLineWidth = 100;
constexpr const char* kNothing = "-";

std::string Number(const TableColumn& column, double value) {
  if (!std::isfinite(value)) return value > 0.0 ? "inf" : "nan";
  return absl::StrFormat("%.*f", column.digits, column.percent ? 100.0 * value : value);
}

// An interval of nearly equal halves is shown by one of them.
bool Symmetric(double value, const std::pair<double, double>& interval) {
  const double below = value - interval.first;
  const double above = interval.second - value;
  return std::abs(below - above) <= 0.1 * std::max(below, above);
}

std::string CellText(const TableColumn& column, const TableCell& cell) {
  std::string text = cell.value ? Number(column, *cell.value) : kNothing;
  if (cell.value && cell.interval) {
    const auto& [low, high] = *cell.interval;
    if (Symmetric(*cell.value, *cell.interval)) {
      absl::StrAppend(&text, " ± ", Number(column, (high - low) / 2.0));
    } else {
      absl::StrAppend(&text, " (", Number(column, low), "..", Number(column, high), ")");
    }
  }
  if (cell.paper) absl::StrAppend(&text, " [", Number(column, *cell.paper), "]");
  return text;
}

std::string ColumnText(const TableColumn& column) {
  return column.unit.empty() ? column.name : absl::StrCat(column.name, ", ", column.unit);
}

// What is in the last column: of the row, or else of its cells where they agree.
std::string CountText(const TableRow& row) {
  if (row.n > 0) return absl::StrCat(row.n);
  int64_t n = 0;
  for (const TableCell& cell : row.cells) {
    if (cell.n == 0) continue;
    if (n != 0 && n != cell.n) return "";
    n = cell.n;
  }
  return n > 0 ? absl::StrCat(n) : "";
}

using Line = std::vector<std::string>;

// The header first. A column in which no row says anything is left out.
std::vector<Line> Lines(const Table& table) {
  std::vector<Line> lines;
  Line header = table.keys;
  for (const TableColumn& column : table.columns) header.push_back(ColumnText(column));
  header.push_back(table.counted.empty() ? "n" : absl::StrCat("n, ", table.counted));
  lines.push_back(std::move(header));
  for (const TableRow& row : table.rows) {
    Line line = row.labels;
    for (size_t i = 0; i < table.columns.size(); ++i) {
      line.push_back(CellText(table.columns[i], i < row.cells.size() ? row.cells[i] : TableCell()));
    }
    line.push_back(CountText(row));
    lines.push_back(std::move(line));
  }
  for (size_t i = lines.front().size(); i-- > table.keys.size();) {
    const bool says = std::any_of(lines.begin() + 1, lines.end(), [i](const Line& line) {
      return !line[i].empty() && line[i] != kNothing;
    });
    if (says) continue;
    for (Line& line : lines) line.erase(line.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return lines;
}

std::string Legend(const Table& table) {
  const bool paper = std::ranges::any_of(table.rows, [](const TableRow& row) {
    return std::ranges::any_of(row.cells,
                               [](const TableCell& cell) { return cell.paper.has_value(); });
  });
  std::string text = table.method;
  if (paper) absl::StrAppend(&text, " In brackets: the paper's number");
  if (paper && !table.paper.empty()) absl::StrAppend(&text, " (", table.paper, ")");
  if (paper) text += ".";
  return text;
}

std::string SettingsText(const Table& table) {
  return absl::StrJoin(table.settings, "; ", [](std::string* out, const auto& setting) {
    absl::StrAppend(out, setting.first, " ", setting.second);
  });
}

// Lines of at most kLineWidth characters, broken at spaces.
std::string Wrapped(const std::string& text) {
  std::string wrapped;
  size_t width = 0;
  for (const auto word : absl::StrSplit(text, ' ')) {
    const size_t size = CountCharacters(std::string(word));
    if (width > 0) wrapped += width + 1 + size > kLineWidth ? '\n' : ' ';
    width = width > 0 && width + 1 + size <= kLineWidth ? width + 1 + size : size;
    absl::StrAppend(&wrapped, word);
  }
  return wrapped + "\n";
}

std::string ForMarkdown(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n", " "}, {"<", "&lt;"}});
}

}  // namespace

std::string TableText(const Table& table) {
  const std::vector<Line> lines = Lines(table);
  std::vector<size_t> widths;
  for (const Line& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], CountCharacters(line[i]));
  }
  std::string text = absl::StrCat(table.title, "\n", Wrapped(Legend(table)));
  if (!table.settings.empty()) absl::StrAppend(&text, Wrapped(SettingsText(table)));
  for (const std::string& finding : table.findings) {
    absl::StrAppend(&text, Wrapped(absl::StrCat("> ", finding)));
  }
  text += "\n";
  for (const Line& line : lines) {
    std::string row;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string room(widths[i] - CountCharacters(line[i]), ' ');
      if (i > 0) row += "  ";
      row += i < table.keys.size() ? line[i] + room : room + line[i];
    }
    row.erase(row.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, row, "\n");
  }
  return text;
}

std::string TableMarkdown(const Table& table, const std::string& svg) {
  std::string text =
      absl::StrCat("## ", ForMarkdown(table.title), "\n\n", ForMarkdown(Legend(table)), "\n");
  for (const std::string& finding : table.findings) {
    absl::StrAppend(&text, "\n> ", ForMarkdown(finding), "\n");
  }
  text += "\n";
  const std::vector<Line> lines = Lines(table);
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const std::string& cell : lines[i]) absl::StrAppend(&text, "| ", ForMarkdown(cell), " ");
    text += "|\n";
    if (i > 0) continue;
    for (size_t j = 0; j < lines[i].size(); ++j) text += j < table.keys.size() ? "|---" : "|---:";
    text += "|\n";
  }
  if (!svg.empty() && !table.figures.empty()) {
    absl::StrAppend(&text, "\n![", ForMarkdown(table.title), "](", svg, ")\n");
  }
  if (!table.settings.empty()) {
    absl::StrAppend(&text, "\nSettings: ", ForMarkdown(SettingsText(table)), ".\n");
  }
  return text;
}

}  // namespace eta
