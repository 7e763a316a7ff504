#include "calibration/profiles/store/open_profile_store.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "calibration/profiles/store/directory_profile_store.h"
#include "calibration/profiles/store/sql/postgres_database.h"
#include "calibration/profiles/store/sql/sql_profile_store.h"
#include "calibration/profiles/store/sql/sqlite_database.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {

absl::StatusOr<std::unique_ptr<ProfileStore>> OpenProfileStore(const std::string& url,
                                                               const ProfileStoreOptions& options) {
  absl::string_view rest = url;
  if (url.find('\0') != std::string::npos) return InvalidField("profile_store", "holds a NUL byte");
  if (absl::StartsWith(url, "postgresql://") || absl::StartsWith(url, "postgres://")) {
    ASSIGN_OR_RETURN(auto database, PostgresDatabase::Open(url, options.busy_timeout));
    return std::make_unique<SqlProfileStore>(std::move(database), options);
  }
  const bool folder = absl::ConsumePrefix(&rest, "dir:");
  if (!folder) absl::ConsumePrefix(&rest, "sqlite:");
  const std::string path(rest);
  if (path.empty()) return InvalidField("profile_store", "names no path");
  if (folder) return DirectoryProfileStore::Open(path, options);
  if (absl::StrContains(path, "://")) {
    return InvalidField("profile_store",
                        "must be sqlite:PATH, a path, postgresql://... or dir:PATH");
  }
  ASSIGN_OR_RETURN(auto database, SqliteDatabase::Open(path, options.busy_timeout));
  return std::make_unique<SqlProfileStore>(std::move(database), options);
}

}  // namespace eta
