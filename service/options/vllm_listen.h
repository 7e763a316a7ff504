// A listener for gateways (--vllm_listen), and the short names of attention that they have.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/request/request.h"

namespace eta {

// How a request attends, by name: "full", "dynamic" or "profile:REFERENCE".
struct AttentionName {
  std::optional<AttentionMode> mode;  // absent: the server chooses
  std::string profile;                // of kProfile: a reference (ParseProfileReference)

  bool operator==(const AttentionName&) const = default;
};

// INVALID_ARGUMENT: another text.
absl::StatusOr<AttentionName> ParseAttentionName(std::string_view text);
std::string Name(const AttentionName& attention);

struct VllmListen {
  std::string address;      // as --listen
  std::string name;         // of the model there; empty: its own
  AttentionName attention;  // of requests that name none
};

// ADDRESS[=NAME[:ATTENTION]]. INVALID_ARGUMENT, naming the flag.
absl::StatusOr<VllmListen> ParseVllmListen(const std::string& text);

}  // namespace eta
