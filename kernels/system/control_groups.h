// The control groups that hold this process: its own and those around it, each of which may limit
// it. Linux, version 1 and 2.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eta {

struct ControlGroupFiles {
  // Where control groups are mounted: version 2, or 1 with each controller's groups in a folder of
  // the controller's name.
  std::string root = "/sys/fs/cgroup";
  std::string own = "/proc/self/cgroup";  // names the process's own
};

struct ControlGroup {
  std::string folder;  // with a slash at its end; it need not exist
  bool version_2 = true;
};

// The groups in which `controller` may limit this process, the innermost first. In a container the
// names may be the host's, whose folders are not there: what is not there sets no limit.
std::vector<ControlGroup> OwnControlGroups(const ControlGroupFiles& files,
                                           std::string_view controller);

// The next word of a file of a group. Nothing for what is no number: version 2 spells "no limit" as
// "max".
std::optional<int64_t> ReadGroupNumber(std::istream& file);

}  // namespace eta
