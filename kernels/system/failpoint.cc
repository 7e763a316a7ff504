#include "kernels/system/failpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

namespace eta {
namespace {

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<FailRule, kNumFailpoints> rules;
  std::array<int64_t, kNumFailpoints> passes{};
  std::array<int64_t, kNumFailpoints> strikes{};
  std::string names_path;
  std::set<std::string> named;  // lines
  uint64_t arming = 0;          // counts changes of the rules
};

// Never destroyed: threads may still pass a failpoint while the process ends.
State& Get() {
  static State* const state = new State;
  return *state;
}

void Name(State& state, std::string_view name, std::string_view source) {
  if (state.names_path.empty()) return;
  const std::string line =
      std::string(name) + " " + std::string(source.substr(source.rfind('/') + 1)) + "\n";
  if (!state.named.insert(line).second) return;
  const int fd = open(state.names_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, line.data(), line.size());
  close(fd);
}

void Set(State& state, size_t index, const FailRule& rule) {
  state.rules[index] = rule;
  state.passes[index] = 0;
  armed_failpoints |= uint64_t{1} << index;
}

void Clear(State& state) {
  armed_failpoints = 0;
  ++state.arming;
  state.changed.notify_all();
}

bool ParseNumber(std::string_view text, int64_t& number) {
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

std::optional<FailAction> ParseAction(std::string_view text) {
  constexpr std::pair<std::string_view, FailAction> kActions[] = {
      {"fail", FailAction::kFail},   {"bad_alloc", FailAction::kBadAlloc},
      {"kill", FailAction::kKill},   {"pause", FailAction::kPause},
      {"delay", FailAction::kDelay},
  };
  for (const auto& [name, action] : kActions) {
    if (name == text) return action;
  }
  return std::nullopt;
}

// NAME=ACTION[:MILLISECONDS][*TIMES][@AFTER]
std::optional<std::pair<size_t, FailRule>> ParseRule(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  const auto* const name =
      std::find(std::begin(kFailpointNames), std::end(kFailpointNames), text.substr(0, equals));
  if (name == std::end(kFailpointNames)) return std::nullopt;
  text.remove_prefix(equals + 1);
  FailRule rule;
  int64_t milliseconds = 0;
  for (const auto& [mark, number] :
       {std::pair('@', &rule.after), std::pair('*', &rule.times), std::pair(':', &milliseconds)}) {
    const size_t at = text.rfind(mark);
    if (at == std::string_view::npos) continue;
    if (!ParseNumber(text.substr(at + 1), *number)) return std::nullopt;
    text = text.substr(0, at);
  }
  const auto action = ParseAction(text);
  if (!action) return std::nullopt;
  rule.action = *action;
  rule.delay = std::chrono::milliseconds(milliseconds);
  return std::pair(static_cast<size_t>(name - std::begin(kFailpointNames)), rule);
}

}  // namespace

void ArmFailpoint(Failpoint point, const FailRule& rule) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  Set(state, static_cast<size_t>(point), rule);
}

void DisarmFailpoints() {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  Clear(state);
}

int64_t FailpointStrikes(Failpoint point) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  return state.strikes[static_cast<size_t>(point)];
}

void NameFailpointsIn(const std::string& path) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  state.names_path = path;
}

bool ArmFailpoints(std::string_view rules) {
  std::vector<std::pair<size_t, FailRule>> parsed;
  std::istringstream words{std::string(rules)};
  for (std::string word; words >> word;) {
    const auto rule = ParseRule(word);
    if (!rule) return false;
    parsed.push_back(*rule);
  }
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  Clear(state);
  for (const auto& [index, rule] : parsed) Set(state, index, rule);
  return true;
}

bool StrikeFailpoint(Failpoint point, std::string_view source) {
  const auto index = static_cast<size_t>(point);
  State& state = Get();
  std::unique_lock lock(state.mutex);
  if (((armed_failpoints >> index) & 1) == 0) return false;
  const FailRule rule = state.rules[index];
  const int64_t pass = state.passes[index]++;
  if (pass < rule.after || pass - rule.after >= rule.times) return false;
  ++state.strikes[index];
  Name(state, kFailpointNames[index], source);
  if (rule.action == FailAction::kPause) {
    state.changed.wait(lock, [&state, arming = state.arming] { return state.arming != arming; });
    return false;
  }
  lock.unlock();
  switch (rule.action) {
    case FailAction::kBadAlloc:
      throw std::bad_alloc();
    case FailAction::kKill:
      kill(getpid(), SIGKILL);
      pause();
      return false;
    case FailAction::kDelay:
      std::this_thread::sleep_for(rule.delay);
      return false;
    default:
      return true;
  }
}

}  // namespace eta
