// Columns of text, aligned for a terminal.
#pragma once

#include <string>
#include <vector>

namespace eta {

enum class Align : uint8_t { kLeft, kRight };

// Lines of equal columns with two spaces between them and none at line ends. Control characters are
// replaced. Every row has one cell per column.
std::string TextTable(const std::vector<Align>& columns,
                      const std::vector<std::vector<std::string>>& rows);

}  // namespace eta
