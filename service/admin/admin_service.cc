#include "service/admin/admin_service.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "service/calls/unary_call.h"

namespace eta {
namespace {

constexpr std::array<std::pair<v1::LogLevel, LogLevel>, 4> kLevels = {{
    {v1::LOG_LEVEL_DEBUG, LogLevel::kDebug},
    {v1::LOG_LEVEL_INFO, LogLevel::kInfo},
    {v1::LOG_LEVEL_WARNING, LogLevel::kWarning},
    {v1::LOG_LEVEL_ERROR, LogLevel::kError},
}};

v1::LogLevel ToMessage(LogLevel level) {
  for (const auto& [message, ours] : kLevels) {
    if (ours == level) return message;
  }
  return v1::LOG_LEVEL_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<v1::SetLogLevelResponse> AdminService::Set(
    const Caller& caller, const v1::SetLogLevelRequest& request) const {
  for (const auto& [message, level] : kLevels) {
    if (message != request.level()) continue;
    v1::SetLogLevelResponse response;
    response.set_previous_level(ToMessage(log_.level()));
    log_.SetLevel(level);
    log_.Write(LogEvent(LogLevel::kWarning, "log_level",
                        absl::StrCat("the log's level is ", std::string(Name(level)), " now"))
                   .Add("log_level", Name(level))
                   .Add("tenant", caller.tenant.id())
                   .Add("credential", caller.credential)
                   .Rank(LogRank::kChange));
    return response;
  }
  return InvalidField("level", "must be one of LOG_LEVEL_DEBUG, _INFO, _WARNING and _ERROR");
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return UnaryCall<v1::SetLogLevelRequest, v1::SetLogLevelResponse>::Start(
      context, *request, response, service_,
      {.name = "SetLogLevel",
       .needed = {Role::kAdmin},
       .max_bytes = static_cast<size_t>(service_.options.max_message_bytes),
       .admission = Admission::kAlways,
       .service = v1::AdminService::service_full_name()},
      [this](const Caller& caller, const v1::SetLogLevelRequest& parsed, CallRecord&) {
        return Set(caller, parsed);
      });
}

}  // namespace eta
