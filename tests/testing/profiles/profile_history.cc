#include "tests/testing/profiles/profile_history.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

constexpr int64_t kMaxSteps = 5'000'000;

uint64_t Mixed(uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// The state of one name. Every version above `deleted` exists.
struct NameState {
  int64_t last = 0;
  int64_t deleted = 0;
  std::map<std::string, int64_t> aliases;
  std::map<int64_t, uint32_t> seeds;

  bool Has(int64_t version) const { return version > deleted && version <= last; }
  uint64_t Hash() const {
    uint64_t hash = Mixed(static_cast<uint64_t>(last)) ^ Mixed(~static_cast<uint64_t>(deleted));
    for (const auto& [alias, version] : aliases) {
      hash ^= Mixed(std::hash<std::string>()(alias) + Mixed(static_cast<uint64_t>(version)));
    }
    for (const auto& [version, seed] : seeds) {
      if (version > deleted) hash ^= Mixed(Mixed(static_cast<uint64_t>(version)) + seed);
    }
    return hash;
  }
};

// Wing and Gong's search with Lowe's memory. It looks for an order of the operations that the clock
// allows and in which each operation gives the observed result.
class Search {
 public:
  explicit Search(std::vector<ProfileEvent> events) : events_(std::move(events)) {
    std::sort(events_.begin(), events_.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (size_t i = 0; i < events_.size(); ++i) {
      (events_[i].outcome == ProfileEvent::kUnknown ? lost_ : answered_).push_back(i);
      Claim(events_[i]);
    }
    done_.resize(events_.size());
  }

  absl::Status Run() {
    if (!contradiction_.empty()) return absl::FailedPreconditionError(contradiction_);
    const bool found = Extend(NameState(), 0);
    if (found) return absl::OkStatus();
    if (steps_ > kMaxSteps) return absl::ResourceExhaustedError("the search took too long");
    std::string text = absl::StrCat("no order of operations gives these answers; ", farthest_,
                                    " of ", answered_.size(), " fit, but none of");
    for (const size_t i : stuck_) absl::StrAppend(&text, "\n  ", Describe(events_[i]));
    return absl::FailedPreconditionError(text);
  }

 private:
  // Notes the seed that each version was seen with. This prunes the guesses about puts without an
  // answer.
  void Claim(const ProfileEvent& event) {
    const bool read = event.kind >= ProfileEvent::kGetNewest;
    if (event.outcome != ProfileEvent::kOk) return;
    if (!read && event.kind != ProfileEvent::kPut) return;
    const auto [version, fresh] = seed_of_.emplace(event.version, event.seed);
    const auto [seed, first] = version_of_.emplace(event.seed, event.version);
    if (version->second != event.seed || seed->second != event.version) {
      contradiction_ =
          absl::StrCat("one version with two contents, or one content with two: ", Describe(event));
    }
  }

  // Extends the order. `count` answered operations are placed already.
  bool Extend(const NameState& state, size_t count) {
    if (count == answered_.size()) return true;
    if (++steps_ > kMaxSteps || !seen_.insert(taken_ ^ Mixed(state.Hash())).second) return false;
    while (first_ < answered_.size() && done_[answered_[first_]]) ++first_;
    const size_t first = first_;
    // An operation that was called after another's answer comes after it.
    int64_t limit = ProfileEvent::kNever;
    std::vector<size_t> next;
    for (size_t i = first; i < answered_.size() && events_[answered_[i]].begin <= limit; ++i) {
      if (done_[answered_[i]]) continue;
      limit = std::min(limit, events_[answered_[i]].end);
      next.push_back(answered_[i]);
    }
    std::erase_if(next, [&](size_t i) { return events_[i].begin > limit; });
    std::sort(next.begin(), next.end(),
              [this](size_t a, size_t b) { return events_[a].end < events_[b].end; });
    if (count >= farthest_) {
      farthest_ = count;
      stuck_ = next;
    }
    for (const size_t i : lost_) {
      if (!done_[i] && events_[i].begin <= limit) next.push_back(i);
    }
    for (const size_t i : next) {
      std::optional<NameState> after = After(state, events_[i]);
      if (!after) continue;
      Take(i, true);
      const bool answered = events_[i].outcome != ProfileEvent::kUnknown;
      if (Extend(*after, count + (answered ? 1 : 0))) return true;
      Take(i, false);
      first_ = first;
      if (steps_ > kMaxSteps) return false;
    }
    return false;
  }
  void Take(size_t i, bool taken) {
    done_[i] = taken;
    taken_ ^= Mixed(i + 1);
  }

  // The state after the operation gave its observed result; nullopt if it could not have given it.
  std::optional<NameState> After(const NameState& state, const ProfileEvent& event) const {
    NameState after = state;
    const bool ok = event.outcome == ProfileEvent::kOk;
    const bool lost = event.outcome == ProfileEvent::kUnknown;
    switch (event.kind) {
      case ProfileEvent::kPut: {
        const int64_t version = ++after.last;
        if (ok && event.version != version) return std::nullopt;
        if (const auto seen = seed_of_.find(version);
            seen != seed_of_.end() && seen->second != event.seed) {
          return std::nullopt;
        }
        if (const auto seen = version_of_.find(event.seed);
            seen != version_of_.end() && seen->second != version) {
          return std::nullopt;
        }
        after.seeds[version] = event.seed;
        return after;
      }
      case ProfileEvent::kDelete: {
        const bool there = state.last > state.deleted;
        if (lost ? !there : there != ok) return std::nullopt;
        after.deleted = after.last;
        after.aliases.clear();
        return after;
      }
      case ProfileEvent::kSetAlias: {
        const bool there =
            event.version == 0 ? state.aliases.contains(event.alias) : state.Has(event.version);
        if (lost ? !there : there != ok) return std::nullopt;
        if (!there) return after;
        if (event.version == 0) {
          after.aliases.erase(event.alias);
        } else {
          after.aliases[event.alias] = event.version;
        }
        return after;
      }
      case ProfileEvent::kGetNewest:
        return Shows(state, state.last, event);
      case ProfileEvent::kGetVersion:
        return Shows(state, event.version, event);
      case ProfileEvent::kGetAlias: {
        const auto named = state.aliases.find(event.alias);
        return Shows(state, named == state.aliases.end() ? 0 : named->second, event);
      }
    }
    return std::nullopt;
  }
  static std::optional<NameState> Shows(const NameState& state, int64_t version,
                                        const ProfileEvent& event) {
    const bool there = state.Has(version);
    if (there != (event.outcome == ProfileEvent::kOk)) return std::nullopt;
    if (there && (event.version != version || state.seeds.at(version) != event.seed)) {
      return std::nullopt;
    }
    return state;
  }

  std::vector<ProfileEvent> events_;     // in order of their calls
  std::vector<size_t> answered_, lost_;  // indices
  std::map<int64_t, uint32_t> seed_of_;  // by version, as seen
  std::map<uint32_t, int64_t> version_of_;
  std::string contradiction_;

  std::vector<bool> done_;
  uint64_t taken_ = 0;  // hash of done_
  size_t first_ = 0;    // every answered operation before it is placed
  std::unordered_set<uint64_t> seen_;
  int64_t steps_ = 0;
  size_t farthest_ = 0;
  std::vector<size_t> stuck_;
};

}  // namespace

std::string Describe(const ProfileEvent& event) {
  static constexpr const char* kKinds[] = {"Put",       "SetAlias",   "Delete",
                                           "GetNewest", "GetVersion", "GetAlias"};
  static constexpr const char* kOutcomes[] = {"ok", "not found", "no answer"};
  return absl::StrCat(kKinds[event.kind], " ", event.name, " alias '", event.alias, "' version ",
                      event.version, " content ", event.seed, ": ", kOutcomes[event.outcome], " [",
                      event.begin, ", ",
                      event.end == ProfileEvent::kNever ? "never" : absl::StrCat(event.end), "]");
}

absl::Status CheckHistory(const std::vector<ProfileEvent>& events) {
  std::map<std::string, std::vector<ProfileEvent>> names;
  for (const ProfileEvent& event : events) names[event.name].push_back(event);
  for (auto& [name, of_name] : names) {
    const absl::Status status = Search(std::move(of_name)).Run();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, ": ", std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

}  // namespace eta
