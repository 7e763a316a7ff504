// Errors with a machine-readable reason. Inside the product an error is an absl::Status; what a
// client may switch on rides along as a payload, and the edge turns it into google.rpc details.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace eta {

struct ErrorDetail {
  std::string reason;                           // upper snake case, e.g. CONTEXT_TOO_LONG
  std::string field;                            // of the request, e.g. sampling.top_p; may be empty
  std::map<std::string, std::string> metadata;  // numbers and names behind the sentence
  std::optional<std::chrono::milliseconds> retry_after;  // set: the same call may succeed later
  // Follows the message where the caller reads it, and stands in no log: it may quote the request.
  std::string unlogged;
};

absl::Status MakeError(absl::StatusCode code, const std::string& message, ErrorDetail detail);

// A bad field of a request: INVALID_ARGUMENT, reason INVALID_FIELD, message "field: sentence".
absl::Status InvalidField(const std::string& field, const std::string& sentence);

// A choice that came with a later version of the API: InvalidField.
absl::Status UnknownChoice(const std::string& field);

// What the model that is loaded cannot do: FAILED_PRECONDITION, reason UNSUPPORTED_BY_MODEL,
// message "field: sentence".
absl::Status UnsupportedByModel(const std::string& field, const std::string& sentence);

// An INVALID_ARGUMENT that names no field, or another one, as InvalidField of `field`, with its
// sentence, metadata and what is unlogged. Errors with a reason of their own, and other codes, stay
// as they are.
absl::Status InField(const std::string& field, const absl::Status& status);

// The deadline of a request passed: DEADLINE_EXCEEDED, reason DEADLINE_DECODING if it had a slot,
// else DEADLINE_QUEUED.
absl::Status DeadlinePassed(bool started);

// The detail of an error made by MakeError; an empty reason for any other status.
ErrorDetail GetErrorDetail(const absl::Status& status);

}  // namespace eta
