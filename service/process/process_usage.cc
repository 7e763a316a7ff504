#include "service/process/process_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>

namespace eta {
namespace {

double BootTime() {
  std::ifstream file("/proc/stat");
  std::string name;
  double value = 0.0;
  while (file >> name) {
    if (name == "btime" && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0.0;
}

// Fields of /proc/self/stat (proc(5)) after the command's name, which may hold anything.
void ReadStat(ProcessUsage& usage) {
  static const double boot_time = BootTime();
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line) || line.rfind(')') == std::string::npos) return;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  double user = 0.0, system = 0.0, start = 0.0;
  int64_t pages = 0;
  for (int field = 3; field <= 13; ++field) fields >> skipped;
  fields >> user >> system;
  for (int field = 16; field <= 19; ++field) fields >> skipped;
  fields >> usage.threads >> skipped >> start >> usage.virtual_bytes >> pages;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  usage.cpu_seconds = (user + system) / ticks;
  usage.start_time = boot_time + start / ticks;
  usage.resident_bytes = pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

ProcessUsage ReadProcessUsage() {
  ProcessUsage usage;
  ReadStat(usage);
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end; entry.increment(error)) {
    ++usage.open_fds;
  }
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    usage.max_fds = static_cast<int64_t>(limit.rlim_cur);
  }
  return usage;
}

}  // namespace eta
