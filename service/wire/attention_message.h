// What is asked of attention and what was read, as the messages of several methods carry it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/request/attention_settings.h"
#include "engine/request/attention_sums.h"
#include "eta/v1/generate.pb.h"
#include "google/protobuf/message.h"

namespace eta {

// The settings that a message has fields for, by their names: of Attention, CalibrateRequest,
// Profile and AttentionUsed. INVALID_ARGUMENT for a choice that is not known, `prefix` before its
// name.
absl::StatusOr<AttentionSettings> ReadSettings(const std::string& prefix,
                                               const google::protobuf::Message& message);
// Sets those that are there and that the message has fields for.
void WriteSettings(const AttentionSettings& settings, google::protobuf::Message& message);

// Without layers. A mean is not set where nothing was counted that it could be of.
v1::AttentionStats ToMessage(const AttentionSums& sums);

}  // namespace eta
