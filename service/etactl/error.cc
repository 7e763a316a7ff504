#include "service/etactl/error.h"

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "service/etactl/view/terminal.h"

namespace eta::ctl {
namespace {

struct Details {
  std::string reason;
  std::string field;
  std::map<std::string, std::string> metadata;
  std::optional<double> retry_after_seconds;
};

Details DetailsOf(const grpc::Status& status) {
  Details details;
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return details;
  for (const google::protobuf::Any& any : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      details.reason = info.reason();
      details.metadata.insert(info.metadata().begin(), info.metadata().end());
    } else if (any.UnpackTo(&bad_request) && bad_request.field_violations_size() > 0) {
      details.field = bad_request.field_violations(0).field();
    } else if (any.UnpackTo(&retry)) {
      details.retry_after_seconds = static_cast<double>(retry.retry_delay().seconds()) +
                                    static_cast<double>(retry.retry_delay().nanos()) * 1e-9;
    }
  }
  return details;
}

std::string CodeName(grpc::StatusCode code) {
  switch (code) {
    case grpc::OK:
      return "OK";
    case grpc::CANCELLED:
      return "CANCELLED";
    case grpc::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case grpc::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case grpc::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::ABORTED:
      return "ABORTED";
    case grpc::OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case grpc::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case grpc::INTERNAL:
      return "INTERNAL";
    case grpc::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::DATA_LOSS:
      return "DATA_LOSS";
    case grpc::UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    default:
      return "UNKNOWN";
  }
}

// A hint for a call without a connection. gRPC reports only what its own layers saw, and a server
// that refuses a client's certificate closes the connection without a word.
std::string ConnectionHint(const grpc::Status& status) {
  const std::string& message = status.error_message();
  if (status.error_code() != grpc::UNAVAILABLE ||
      !absl::StrContains(message, "failed to connect")) {
    return "";
  }
  if (absl::StrContains(message, "certificate verify failed")) {
    return "the server's certificate is of no root in --tls_ca, or has expired";
  }
  if (absl::StrContains(message, "wrong version number")) {
    return "the server speaks no TLS there: leave out --tls_ca";
  }
  for (const char* const closed : {"Socket closed", "Connection reset by peer", "Broken pipe"}) {
    if (absl::StrContains(message, closed)) {
      return "the server hung up: it may demand TLS (--tls_ca), or a valid certificate of yours "
             "(--tls_cert, --tls_key)";
    }
  }
  return "";
}

}  // namespace

ExitCode ExitCodeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::OK:
      return kOk;
    case grpc::UNAVAILABLE:
      return DetailsOf(status).reason == "DEVICE_ERROR" ? kServerFailure : kUnreachable;
    case grpc::RESOURCE_EXHAUSTED:
    case grpc::DEADLINE_EXCEEDED:
      return kExhausted;
    case grpc::INVALID_ARGUMENT:
    case grpc::NOT_FOUND:
    case grpc::ALREADY_EXISTS:
    case grpc::ABORTED:
    case grpc::FAILED_PRECONDITION:
    case grpc::OUT_OF_RANGE:
    case grpc::PERMISSION_DENIED:
    case grpc::UNAUTHENTICATED:
    case grpc::UNIMPLEMENTED:
      return kRefused;
    default:
      return kServerFailure;
  }
}

std::string DescribeError(const grpc::Status& status) {
  const Details details = DetailsOf(status);
  std::vector<std::string> notes;
  if (!details.reason.empty()) notes.push_back(absl::StrCat("reason ", details.reason));
  if (!details.field.empty()) notes.push_back(absl::StrCat("field ", details.field));
  if (details.retry_after_seconds.has_value()) {
    notes.push_back(absl::StrCat("retry in ", ReadableSeconds(*details.retry_after_seconds)));
  }
  std::string line = absl::StrCat(CodeName(status.error_code()), ": ", status.error_message());
  if (!notes.empty()) absl::StrAppend(&line, " [", absl::StrJoin(notes, ", "), "]");
  if (const std::string hint = ConnectionHint(status); !hint.empty()) {
    absl::StrAppend(&line, " (", hint, ")");
  }
  return WithoutControls(line);
}

std::string ErrorJson(const grpc::Status& status) {
  const Details details = DetailsOf(status);
  nlohmann::json error = {{"code", CodeName(status.error_code())},
                          {"message", status.error_message()}};
  if (!details.reason.empty()) error["reason"] = details.reason;
  if (!details.field.empty()) error["field"] = details.field;
  if (!details.metadata.empty()) error["metadata"] = details.metadata;
  if (details.retry_after_seconds.has_value()) {
    error["retry_after_seconds"] = *details.retry_after_seconds;
  }
  const nlohmann::json line = {{"error", error}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ErrorReasonOf(const grpc::Status& status) {
  return DetailsOf(status).reason;
}

std::optional<double> RetrySecondsOf(const grpc::Status& status) {
  return DetailsOf(status).retry_after_seconds;
}

std::string RefusedField(const grpc::Status& status) {
  return DetailsOf(status).field;
}

ExitCode Report(const grpc::Status& status, bool json) {
  if (status.ok()) return kOk;
  if (json) std::printf("%s\n", ErrorJson(status).c_str());
  std::fprintf(stderr, "etactl: %s\n", DescribeError(status).c_str());
  return ExitCodeOf(status);
}

}  // namespace eta::ctl
