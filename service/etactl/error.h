// How etactl reports a failed call: one line for people, one object for programs, an exit code.
#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

namespace eta::ctl {

enum ExitCode : int {
  kOk = 0,
  kLocalError = 1,     // output could not be written
  kUsage = 2,          // bad command line, or a file that cannot be read
  kUnreachable = 3,    // no server there, or it does not serve
  kRefused = 4,        // the request is invalid, not permitted, or names what does not exist
  kExhausted = 5,      // no capacity, or no time left
  kServerFailure = 6,  // a fault of the server
  kInterrupted = 130,  // Ctrl-C
};

ExitCode ExitCodeOf(const grpc::Status& status);

// "INVALID_ARGUMENT: message [reason INVALID_FIELD, field sampling.top_p, retry in 0.50 s]". If TLS
// may be why there was no connection, a sentence in parentheses says so.
std::string DescribeError(const grpc::Status& status);

// One line: {"error": {"code", "message", "reason", "field", "metadata", "retry_after_seconds"}}.
std::string ErrorJson(const grpc::Status& status);

// The reason that the server gives; empty if it gives none, as where none was reached.
std::string ErrorReasonOf(const grpc::Status& status);

// The time after which the server says to call again; absent if it says nothing of one.
std::optional<double> RetrySecondsOf(const grpc::Status& status);

// The path of the field that the server refused; empty if it names none.
std::string RefusedField(const grpc::Status& status);

// Reports a failed call on standard error and, with `json`, also on standard output. Returns the
// exit code.
ExitCode Report(const grpc::Status& status, bool json);

}  // namespace eta::ctl
