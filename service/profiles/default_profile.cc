#include "service/profiles/default_profile.h"

#include <future>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

constexpr char kWithout[] = ": requests that name no attention mode go without it";

absl::Status Ask(const Tenant& tenant, const ProfileReference& reference, ProfileCache& profiles) {
  auto answered = std::make_shared<std::promise<absl::Status>>();
  profiles.ResolveDefault(tenant, reference, [answered](const ProfileCache::Answer& answer) {
    answered->set_value(answer.status());
  });
  return answered->get_future().get();
}

}  // namespace

void LogDefaultProfile(const ProfileReference& reference, const std::string& text,
                       const std::set<Tenant>& tenants, ProfileCache& profiles, Log& log) {
  size_t with = 0;
  absl::Status trouble;
  for (const Tenant& tenant : tenants) {
    const absl::Status status = Ask(tenant, reference, profiles);
    if (status.ok()) {
      ++with;
    } else if (GetErrorDetail(status).reason == "DRAINING") {
      return;
    } else if (!absl::IsNotFound(status)) {
      trouble = status;
      break;
    }
  }
  LogLevel level = LogLevel::kInfo;
  if (tenants.empty()) {
    log.Write(LogEvent(level, "default_profile",
                       absl::StrCat("calls will tell who has the default profile ", text,
                                    ": no tenant is known before it calls"))
                  .Add("profile", text));
    return;
  }
  std::string message = absl::StrCat("the default profile ", text, " is there for ", with, " of ",
                                     tenants.size(), " tenants that are known");
  if (!trouble.ok()) {
    level = LogLevel::kWarning;
    message = absl::StrCat("who has the default profile ", text, " cannot be told (",
                           trouble.message(), ")", kWithout);
  } else if (with == 0) {
    level = LogLevel::kWarning;
    message = absl::StrCat("no tenant that is known has the default profile ", text, kWithout);
  }
  log.Write(LogEvent(level, "default_profile", std::move(message))
                .Add("profile", text)
                .Add("tenants", tenants.size())
                .Add("tenants_with_it", with));
}

}  // namespace eta
