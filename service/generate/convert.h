// Conversion between the messages of Generate and the engine's structs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/request/engine_info.h"
#include "engine/request/request.h"
#include "eta/v1/generate.pb.h"
#include "service/telemetry/call_record.h"

namespace eta {

// Takes what the fields say; ValidateRequest judges the values. Errors are those of the form alone:
// no prompt, an enum value that this build does not know, half a logit bias. Left to the caller:
// tenant, deadline, an absent request id, the format (convert_format.h), and the profile that
// attention().profile() names.
absl::StatusOr<Request> ToRequest(const v1::GenerateRequest& message);

// Unspecified where it was used.
v1::DefaultProfileMiss ToMessage(DefaultProfileUse use);

v1::GenerateResponse ToMessage(const StartedEvent& event, const EngineInfo& model);
v1::GenerateResponse ToMessage(const PrefillEvent& event);
v1::GenerateResponse ToMessage(DeltaEvent event);
v1::GenerateResponse ToMessage(const FinishedEvent& event);

// Appends `next` to `last` if both are deltas, or both prefill progress: the reader sees the same
// text, calls, ids and log-probabilities in fewer messages. False: they cannot be one message.
bool Merge(v1::GenerateResponse& last, const v1::GenerateResponse& next);

}  // namespace eta
