#include "engine/request/shadow/live_mass.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

int64_t SlotAt(Clock::time_point now) {
  return now.time_since_epoch() / LiveMass::kSlot;
}

// What attends alike has the same. Names are counted, so that none runs into the next.
std::string KindOf(const std::string& tenant, const ResolvedAttention& attention) {
  const AttentionOptions& options = attention.options;
  std::string kind =
      absl::StrCat(tenant.size(), ":", tenant, ";", static_cast<int>(attention.mode), ";");
  if (attention.profile != nullptr) {
    const ThresholdProfile& profile = *attention.profile;
    absl::StrAppend(&kind, profile.name.size(), ":", profile.name, "@", profile.version, ";");
  }
  AttentionSettings settings = UsedSettings(attention);
  settings.min_mass.reset();  // what is asked of them does not change what they keep
  absl::StrAppend(&kind, Describe(settings));
  if (options.relative) absl::StrAppend(&kind, ";", options.relative_c);
  return kind;
}

}  // namespace

void LiveMass::Add(const std::string& tenant, const ResolvedAttention& attention,
                   const MassEstimate& mass, Clock::time_point now) {
  const int64_t number = SlotAt(now);
  std::string name = KindOf(tenant, attention);
  const MutexLock lock(mutex_);
  auto found = kinds_.find(name);
  if (found == kinds_.end()) {
    MakeRoom();
    found = kinds_.emplace(std::move(name), Kind()).first;
  }
  Kind& kind = found->second;
  kind.newest = number;
  Slot& slot = kind.slots[static_cast<size_t>(number % kSlots)];
  if (slot.number != number) slot = {.number = number, .mass = {}};
  slot.mass.Add(mass);
}

bool LiveMass::BeginsFull(const std::string& tenant, const ResolvedAttention& attention,
                          Clock::time_point now) {
  if (!attention.min_mass || attention.options.admit_all) return false;
  const std::string name = KindOf(tenant, attention);
  const int64_t oldest = SlotAt(now) - kSlots + 1;
  const MutexLock lock(mutex_);
  const auto found = kinds_.find(name);
  if (found == kinds_.end()) return false;
  Kind& kind = found->second;
  MassEstimate live;
  for (const Slot& slot : kind.slots) {
    if (slot.number >= oldest) live.Add(slot.mass);
  }
  if (!live.LiesUnder(*attention.min_mass)) return false;
  return ++kind.full_begun % kProbes != 0;
}

void LiveMass::MakeRoom() {
  if (kinds_.size() < kMostKinds) return;
  kinds_.erase(std::min_element(kinds_.begin(), kinds_.end(), [](const auto& a, const auto& b) {
    return a.second.newest < b.second.newest;
  }));
}

}  // namespace eta
