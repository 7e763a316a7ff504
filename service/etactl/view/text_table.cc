#include "service/etactl/view/text_table.h"

#include <algorithm>

#include "engine/base/utf8_characters.h"
#include "service/etactl/view/terminal.h"

namespace eta {

std::string TextTable(const std::vector<Align>& columns,
                      const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> cells = rows;
  std::vector<size_t> widths(columns.size(), 0);
  for (auto& row : cells) {
    for (size_t i = 0; i < columns.size(); ++i) {
      row[i] = WithoutControls(row[i]);
      std::replace(row[i].begin(), row[i].end(), '\n', ' ');
      std::replace(row[i].begin(), row[i].end(), '\t', ' ');
      widths[i] = std::max(widths[i], CountCharacters(row[i]));
    }
  }
  std::string table;
  for (const auto& row : cells) {
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string blanks(widths[i] - CountCharacters(row[i]), ' ');
      if (i > 0) line += "  ";
      line += columns[i] == Align::kRight ? blanks + row[i] : row[i] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + '\n';
  }
  return table;
}

}  // namespace eta
