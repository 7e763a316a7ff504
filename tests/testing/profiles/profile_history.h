// What many clients saw of shared profiles, and whether a store that keeps its promises could have
// shown it.
//
// The promises, of each name: operations take effect one after the other, each at a moment between
// its call and its answer (linearizability); a write adds version last + 1, so versions never
// repeat nor go back, also over Delete; reads show the newest version, the one that is asked for,
// or the one that the alias names. A write whose answer was lost took effect at any later moment,
// or never (as etcd's own tests have it); one that was refused took none.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eta {

struct ProfileEvent {
  enum Kind : uint8_t { kPut, kSetAlias, kDelete, kGetNewest, kGetVersion, kGetAlias };
  enum Outcome : uint8_t {
    kOk,
    kNotFound,
    kUnknown,  // of a write: no answer came
  };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  Kind kind = kGetNewest;
  Outcome outcome = kOk;
  std::string name;
  int64_t begin = 0;    // of the call, and
  int64_t end = 0;      // of its answer, by one clock; kNever for kUnknown
  uint32_t seed = 0;    // of the content put, unlike any other's; or of the content read
  int64_t version = 0;  // that a put made or a read found; that kGetVersion or kSetAlias names (0:
                        // the alias is removed)
  std::string alias;    // of kSetAlias and kGetAlias
};

std::string Describe(const ProfileEvent& event);

// FAILED_PRECONDITION, naming the profile and the operation after which nothing fits, for a history
// that breaks a promise; RESOURCE_EXHAUSTED if that could not be decided in a few million steps.
absl::Status CheckHistory(const std::vector<ProfileEvent>& events);

}  // namespace eta
