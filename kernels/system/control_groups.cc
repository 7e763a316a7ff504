#include "kernels/system/control_groups.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace eta {
namespace {

bool Contains(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

// Lines of the file are ID:CONTROLLERS:PATH; version 2 has no controllers.
std::vector<ControlGroup> OwnControlGroups(const ControlGroupFiles& files,
                                           std::string_view controller) {
  std::vector<ControlGroup> groups;
  std::ifstream file(files.own);
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && !Contains(controllers, controller)) continue;
    std::string root = files.root;
    if (!version_2) root.append("/").append(controller);
    std::string path = line.substr(second + 1);
    while (true) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      groups.push_back({root + path + "/", version_2});
      if (path.empty()) break;
      const size_t parent = path.rfind('/');
      path.resize(parent == std::string::npos ? 0 : parent);
    }
  }
  return groups;
}

std::optional<int64_t> ReadGroupNumber(std::istream& file) {
  std::string word;
  if (!(file >> word)) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

}  // namespace eta
