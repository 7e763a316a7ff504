// A model of a profile store's contents, and random steps to take on both.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"

namespace eta {

struct ModelProfile {
  int64_t last = 0;                      // the highest version ever given
  std::map<int64_t, uint32_t> versions;  // existing versions, with the seeds of their contents
  std::map<std::string, int64_t> aliases;
  friend bool operator==(const ModelProfile&, const ModelProfile&) = default;
};
using StoreState = std::map<std::pair<Tenant, std::string>, ModelProfile>;

struct StoreStep {
  enum Kind { kPut, kSetAlias, kDelete };
  Kind kind = kPut;
  Tenant tenant;
  std::string name;
  uint32_t seed = 0;    // of a put's content; it has the request id "r<seed>"
  std::string alias;    // of kSetAlias
  int64_t version = 0;  // likewise; 0 removes the alias
};

// The content of a seed: mostly a few hundred bytes, sometimes several pages of a database. Its
// label "owner" names the tenant.
ProfileContent ContentOf(uint32_t seed, const Tenant& owner);

// A step on one of four names. It finds what it needs about half of the time.
StoreStep DrawStep(std::mt19937& random, const std::vector<Tenant>& tenants);

StoreState After(StoreState state, const StoreStep& step);
// The visible part of a state, without names whose versions are all deleted and without their last
// versions.
StoreState Visible(StoreState state);

// Takes the step on the store, and on the state if the store says that it was done. OK if the
// answer is the one that the state demands, also if that is an error. FAILED_PRECONDITION
// (WRONG_ANSWER) for another success or refusal. Otherwise the store's error.
absl::Status Take(const StoreStep& step, ProfileStore& store, StoreState& state);

// Reads everything that the tenants can read and checks every content against its seed and owner.
absl::StatusOr<StoreState> Observe(const ProfileStore& store, const std::vector<Tenant>& tenants);

std::string Describe(const StoreState& state);

}  // namespace eta
