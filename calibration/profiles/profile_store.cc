#include "calibration/profiles/profile_store.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "calibration/profiles/store/directory_profile_store.h"
#include "calibration/profiles/store/postgres_database.h"
#include "calibration/profiles/store/sql_profile_store.h"
#include "calibration/profiles/store/sqlite_database.h"
#include "engine/base/error.h"

namespace eta {

absl::StatusOr<ProfileReference> ParseProfileReference(const std::string& field,
                                                       std::string_view text) {
  const size_t at = text.find('@');
  ProfileReference reference{.name = std::string(text.substr(0, at)), .selector = Newest()};
  if (absl::Status s = CheckProfileName(field, reference.name); !s.ok()) return s;
  if (at == std::string_view::npos) return reference;
  const std::string which(text.substr(at + 1));
  int64_t version = 0;
  const bool digits = !which.empty() && which.find_first_not_of("0123456789") == which.npos;
  if (digits && which.front() != '0' && absl::SimpleAtoi(which, &version)) {
    reference.selector = version;
    return reference;
  }
  if (!CheckProfileAlias(field, which).ok()) {
    return InvalidField(field, "must have a version or an alias after the @");
  }
  reference.selector = which;
  return reference;
}

absl::StatusOr<std::unique_ptr<ProfileStore>> OpenProfileStore(const std::string& url,
                                                               const ProfileStoreOptions& options) {
  absl::string_view rest = url;
  if (url.find('\0') != std::string::npos) return InvalidField("profile_store", "holds a NUL byte");
  if (absl::StartsWith(url, "postgresql://") || absl::StartsWith(url, "postgres://")) {
    auto database = PostgresDatabase::Open(url, options.busy_timeout);
    if (!database.ok()) return database.status();
    return std::make_unique<SqlProfileStore>(*std::move(database), options);
  }
  const bool folder = absl::ConsumePrefix(&rest, "dir:");
  if (!folder) absl::ConsumePrefix(&rest, "sqlite:");
  const std::string path(rest);
  if (path.empty()) return InvalidField("profile_store", "names no path");
  if (folder) return DirectoryProfileStore::Open(path, options.poll_interval);
  if (absl::StrContains(path, "://")) {
    return InvalidField("profile_store",
                        "must be sqlite:PATH, a path, postgresql://... or dir:PATH");
  }
  auto database = SqliteDatabase::Open(path, options.busy_timeout);
  if (!database.ok()) return database.status();
  return std::make_unique<SqlProfileStore>(*std::move(database), options);
}

}  // namespace eta
