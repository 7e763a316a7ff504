// Checks the observations of many clients of shared profiles: could a store that keeps its promises
// have shown them?
//
// The promises, for each name. Operations take effect one after the other, each at a moment between
// its call and its answer (linearizability). A put adds version last + 1, so versions never repeat
// nor go back, also over Delete. Reads show the newest version, the version that is asked for, or
// the one that the alias names. A write whose answer was lost took effect at any later moment, or
// never (as in etcd's own tests). A refused write took no effect.
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
    kUnknown,  // of a write without an answer
  };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  Kind kind = kGetNewest;
  Outcome outcome = kOk;
  std::string name;
  int64_t begin = 0;  // time of the call
  int64_t end = 0;    // time of the answer by the same clock; kNever for kUnknown
  uint32_t seed = 0;  // of the content put, unlike any other's; or of the content read
  // The version that a put made or a read found, or that kGetVersion or kSetAlias names. 0 removes
  // the alias.
  int64_t version = 0;
  std::string alias;  // of kSetAlias and kGetAlias
};

std::string Describe(const ProfileEvent& event);

// FAILED_PRECONDITION, naming the profile and the operation after which nothing fits, for a history
// that breaks a promise. RESOURCE_EXHAUSTED if a few million steps did not decide it.
absl::Status CheckHistory(const std::vector<ProfileEvent>& events);

}  // namespace eta
