// Columns of text, aligned for a terminal.
#pragma once

#include <string>
#include <vector>

namespace eta {

enum class Align : uint8_t { kLeft, kRight };

// Lines of equal columns, two spaces between them, none at line ends; control characters are
// replaced. Every row has as many cells as there are columns.
std::string TextTable(const std::vector<Align>& columns,
                      const std::vector<std::vector<std::string>>& rows);

}  // namespace eta
