#include "calibration/profiles/store/sql/sql_profile_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/store/page_token.h"
#include "calibration/profiles/store/sql/sql_aliases.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

constexpr int64_t kMaxUses = 100'000;  // tenants whose use is kept in memory: tens of MB

absl::Status CheckExpected(int64_t newest, std::optional<int64_t> expected) {
  if (!expected || *expected == newest) return absl::OkStatus();
  return *expected == 0 ? ProfileExists() : VersionMismatch(newest);
}

// Checks all fields but the content.
absl::Status CheckPutFields(const PutProfile& put) {
  RETURN_IF_ERROR(CheckProfileName("name", put.name));
  RETURN_IF_ERROR(CheckRequestIdentity(put.request_id, put.payload_digest));
  return CheckExpectedVersion(put.expected_version);
}

// Reads a row of tenant, versions, bytes, versions_ever.
ProfileUse UseOf(const SqlRow& row) {
  return {.versions = Integer(row[1]), .bytes = Integer(row[2]), .versions_ever = Integer(row[3])};
}

// Whether there is room once `surplus` is gone.
absl::Status CheckQuota(SqlSession& session, const Tenant& tenant, const ProfileQuota& quota,
                        const SurplusVersions& surplus, int64_t added_bytes) {
  ASSIGN_OR_RETURN(
      const std::vector<SqlRow> rows,
      session.Run("SELECT tenant, versions, bytes, versions_ever FROM eta_uses WHERE tenant = $1",
                  std::vector<SqlValue>{tenant.id()}));
  const ProfileUse use = rows.empty() ? ProfileUse() : UseOf(rows.front());
  if (use.versions_ever >= quota.versions_ever) {
    return OverProfileQuota("profile versions, deleted ones too", quota.versions_ever);
  }
  if (use.versions - std::ssize(surplus.versions) >= quota.versions) {
    return OverProfileQuota("profiles", quota.versions);
  }
  if (added_bytes > quota.bytes - use.bytes + surplus.bytes) {
    return OverProfileQuota("bytes of profiles", quota.bytes);
  }
  return absl::OkStatus();
}

// Raises the revision and records whose profile changed.
absl::Status NoteChange(SqlSession& session, const Tenant& tenant, const std::string& name) {
  RETURN_IF_ERROR(session.Run("UPDATE eta_store SET revision = revision + 1", {}).status());
  return session
      .Run(
          "INSERT INTO eta_changes (tenant, name, revision)"
          " VALUES ($1, $2, (SELECT revision FROM eta_store))"
          " ON CONFLICT (tenant, name) DO UPDATE SET revision = excluded.revision",
          std::vector<SqlValue>{tenant.id(), name})
      .status();
}

}  // namespace

SqlProfileStore::SqlProfileStore(std::unique_ptr<SqlDatabase> database,
                                 const ProfileStoreOptions& options)
    : options_(options),
      database_(std::move(database)),
      poll_(
          options.poll_interval, [this] { PollForChanges(); },
          [this] { return database_->News(); }) {}

ProfileQuota SqlProfileStore::QuotaOf(const Tenant& tenant) const {
  return options_.quota_of ? options_.quota_of(tenant) : options_.quota;
}

ServedModel SqlProfileStore::Served() const {
  return options_.served_model ? options_.served_model() : ServedModel();
}

absl::StatusOr<SurplusVersions> SqlProfileStore::Surplus(SqlSession& session, const Tenant& tenant,
                                                         const std::string& name,
                                                         const std::string& model, bool staged,
                                                         int added) const {
  if (options_.keep_versions == 0) return SurplusVersions();
  return FindSurplus(session, tenant, name, model, staged, options_.keep_versions - added);
}

void SqlProfileStore::TellRemoved(const Tenant& tenant, const std::string& name,
                                  const std::vector<int64_t>& versions) {
  if (versions.empty()) return;
  for (const int64_t version : versions) quarantine_.Forget(tenant, name, version);
  if (options_.on_removed) options_.on_removed(tenant, name, versions);
}

SqlRows SqlProfileStore::Query(const Tenant& tenant, const char* statement,
                               const std::vector<SqlValue>& values) const {
  SqlRows rows = std::vector<SqlRow>();
  RETURN_IF_ERROR(database_->Read(tenant, [&](SqlSession& session) {
    rows = session.Run(statement, values);
    return rows.status();
  }));
  return rows;
}

absl::StatusOr<ProfilePtr> SqlProfileStore::FindRequest(const Tenant& tenant,
                                                        const PutProfile& put) const {
  absl::StatusOr<ProfilePtr> found = ProfilePtr();
  RETURN_IF_ERROR(database_->Read(tenant, [&](SqlSession& session) {
    found = RequestRecord(session, tenant, put);
    return found.status();
  }));
  return found;
}

absl::StatusOr<SqlEnd> SqlProfileStore::Insert(SqlSession& session, const Tenant& tenant,
                                               const PutProfile& put, Inserted& inserted) const {
  inserted = {};
  ASSIGN_OR_RETURN(inserted.stored, RequestRecord(session, tenant, put));
  if (inserted.stored != nullptr) return SqlEnd::kRollback;

  const std::string model = CountedModel(Served(), put.content.model_fingerprint);
  ASSIGN_OR_RETURN(const int64_t last, LastVersion(session, tenant, put.name));
  ASSIGN_OR_RETURN(const int64_t newest, NewestVersion(session, tenant, put.name, model));
  RETURN_IF_ERROR(CheckExpected(newest, put.expected_version));
  ProfileRecord record{.tenant = tenant,
                       .name = put.name,
                       .version = last + 1,
                       .create_time_us = absl::ToUnixMicros(absl::Now()),
                       .request_id = put.request_id,
                       .payload_digest = put.payload_digest,
                       .content = put.content,
                       .checksum = "",
                       .staged = put.stage};
  const std::string& fingerprint = record.content.model_fingerprint;
  ASSIGN_OR_RETURN(std::string blob, EncodeProfile(record));
  ASSIGN_OR_RETURN(SurplusVersions surplus,
                   Surplus(session, tenant, put.name, model.empty() ? fingerprint : model,
                           put.stage, /*added=*/1));
  RETURN_IF_ERROR(
      CheckQuota(session, tenant, QuotaOf(tenant), surplus, static_cast<int64_t>(blob.size())));
  for (const int64_t version : surplus.versions) {
    RETURN_IF_ERROR(DropVersion(session, tenant, put.name, version));
  }
  inserted.removed = std::move(surplus.versions);
  const SqlRows added = session.Run(
      "INSERT INTO eta_profiles (tenant, name, version, create_time_us, request_id, payload_digest,"
      " record, model_fingerprint, staged) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
      std::vector<SqlValue>{tenant.id(), record.name, record.version, record.create_time_us,
                            TextOrNull(record.request_id), TextOrNull(record.payload_digest),
                            SqlBytes{std::move(blob)}, fingerprint,
                            int64_t{record.staged ? 1 : 0}});
  RETURN_IF_ERROR(added.status());
  if (ETA_FAILPOINT(kStorePut)) return StoreFull();
  RETURN_IF_ERROR(NoteChange(session, tenant, put.name));
  inserted.stored = std::make_shared<const ProfileRecord>(std::move(record));
  return SqlEnd::kCommit;
}

absl::StatusOr<ProfilePtr> SqlProfileStore::Put(const Tenant& tenant, const PutProfile& put) {
  RETURN_IF_ERROR(CheckPutFields(put));
  RETURN_IF_ERROR(CheckProfileContent(put.content));
  Inserted inserted;
  const absl::Status status = database_->Write(
      tenant, [&](SqlSession& session) { return Insert(session, tenant, put, inserted); });
  if (HasReason(status, "OUTCOME_UNKNOWN") && !put.request_id.empty()) {
    const absl::StatusOr<ProfilePtr> found = FindRequest(tenant, put);
    if (!found.ok() || *found == nullptr) return status;
    inserted.stored = *found;
  } else if (!status.ok()) {
    return status;
  }
  TellRemoved(tenant, put.name, inserted.removed);
  feed_.Tell({.tenant = tenant, .name = put.name});
  return inserted.stored;
}

absl::StatusOr<ProfilePtr> SqlProfileStore::CheckPut(const Tenant& tenant,
                                                     const PutProfile& put) const {
  RETURN_IF_ERROR(CheckPutFields(put));
  absl::StatusOr<ProfilePtr> found = ProfilePtr();
  const auto check = [&](SqlSession& session) -> absl::Status {
    found = RequestRecord(session, tenant, put);
    if (!found.ok() || *found != nullptr) return found.status();
    const std::string model = CountedModel(Served(), put.content.model_fingerprint);
    ASSIGN_OR_RETURN(const int64_t newest, NewestVersion(session, tenant, put.name, model));
    RETURN_IF_ERROR(CheckExpected(newest, put.expected_version));
    ASSIGN_OR_RETURN(const SurplusVersions surplus,
                     Surplus(session, tenant, put.name,
                             model.empty() ? put.content.model_fingerprint : model, put.stage,
                             /*added=*/1));
    return CheckQuota(session, tenant, QuotaOf(tenant), surplus, 1);
  };
  RETURN_IF_ERROR(database_->Read(tenant, check));
  const absl::Status health = database_->Health();
  if (*found == nullptr && HasReason(health, "STORE_FAILED")) return health;
  return found;
}

// The number that a selector means; errors of ProfileStore::Get.
absl::StatusOr<int64_t> SqlProfileStore::Select(SqlSession& session, const Tenant& tenant,
                                                const std::string& name,
                                                const ProfileSelector& selector) const {
  if (const int64_t* version = std::get_if<int64_t>(&selector)) return *version;
  const std::string model = CountedModel(Served());
  absl::StatusOr<int64_t> fitting, any;
  if (const std::string* alias = std::get_if<std::string>(&selector)) {
    ASSIGN_OR_RETURN(const auto rows, AliasRows(session, tenant, name));
    fitting = AliasedVersion(rows, *alias, model);
    any = AliasedVersion(rows, *alias, {});
  } else {
    fitting = NewestVersion(session, tenant, name, model);
    if (!fitting.ok() || *fitting != 0) return fitting;
    any = NewestVersion(session, tenant, name, {});
  }
  if (!any.ok()) return any.status();
  if (*fitting != 0) return fitting;
  if (*any == 0) return NoSuchProfile();
  ASSIGN_OR_RETURN(const auto foreign, FindVersion(session, tenant, name, *any));
  return NoFittingVersion(foreign ? foreign->fingerprint : "", model);
}

absl::StatusOr<ProfilePtr> SqlProfileStore::Get(const Tenant& tenant, const std::string& name,
                                                const ProfileSelector& selector) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  const int64_t* version = std::get_if<int64_t>(&selector);
  if (version != nullptr && *version < 1) return InvalidField("version", "must be at least 1");
  if (const std::string* alias = std::get_if<std::string>(&selector)) {
    RETURN_IF_ERROR(CheckProfileAlias("alias", *alias));
  }
  absl::StatusOr<ProfilePtr> record = ProfilePtr();
  RETURN_IF_ERROR(database_->Read(tenant, [&](SqlSession& session) -> absl::Status {
    ASSIGN_OR_RETURN(const int64_t selected, Select(session, tenant, name, selector));
    record = VersionRecord(session, tenant, name, selected);
    quarantine_.Note(tenant, name, selected, record.status());
    return record.status();
  }));
  return record;
}

// Makes a page from rows of name, version, create time, bytes, fingerprint, staged. The query asked
// for one row more than fits. A name that could not have been put is a damaged row: Health reports
// it, and it is not listed.
ProfileList SqlProfileStore::Page(const Tenant& tenant, const std::string& listing,
                                  const std::vector<SqlRow>& rows, const ProfilePage& page) const {
  ProfileList list;
  const size_t size = std::min(rows.size(), static_cast<size_t>(page.rows()));
  for (size_t i = 0; i < size; ++i) {
    const std::string name = Text(rows[i][0]);
    const int64_t version = Integer(rows[i][1]);
    if (!CheckProfileName("name", name).ok()) {
      quarantine_.Note(tenant, name, version, RowCorrupt());
      continue;
    }
    list.profiles.push_back({.name = name,
                             .version = version,
                             .create_time_us = Integer(rows[i][2]),
                             .bytes = Integer(rows[i][3]),
                             .model_fingerprint = Text(rows[i][4]),
                             .staged = Integer(rows[i][5]) != 0,
                             .corrupt = quarantine_.Holds(tenant, name, version)});
  }
  if (rows.size() > size) {
    const SqlRow& last = rows[size - 1];
    list.next_token = MakePageToken(
        tenant, listing, listing.empty() ? Text(last[0]) : absl::StrCat(Integer(last[1])));
  }
  return list;
}

absl::StatusOr<ProfileList> SqlProfileStore::List(const Tenant& tenant,
                                                  const ProfilePage& page) const {
  ASSIGN_OR_RETURN(const std::string last, ReadNamePage(tenant, page));
  const std::string model = CountedModel(Served());
  ASSIGN_OR_RETURN(
      const std::vector<SqlRow> rows,
      Query(tenant,
            "SELECT p.name, p.version, p.create_time_us, LENGTH(p.record), p.model_fingerprint,"
            " p.staged FROM eta_profiles p JOIN"
            " (SELECT name, COALESCE(MAX(CASE WHEN staged = 0 AND"
            "   (CAST($4 AS TEXT) = '' OR model_fingerprint IN ($4, '')) THEN version END), "
            "MAX(version))"
            "  AS version FROM eta_profiles WHERE tenant = $1 AND name > $2 AND record IS NOT NULL"
            "  GROUP BY name ORDER BY name LIMIT $3) n"
            " ON p.tenant = $1 AND p.name = n.name AND p.version = n.version ORDER BY p.name",
            {tenant.id(), last, int64_t{page.rows()} + 1, model}));
  return Page(tenant, "", rows, page);
}

absl::StatusOr<ProfileList> SqlProfileStore::ListVersions(const Tenant& tenant,
                                                          const std::string& name,
                                                          const ProfilePage& page) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  ASSIGN_OR_RETURN(const int64_t before, ReadVersionPage(tenant, name, page));
  ASSIGN_OR_RETURN(const std::vector<SqlRow> rows,
                   Query(tenant,
                         "SELECT name, version, create_time_us, LENGTH(record),"
                         " model_fingerprint, staged FROM eta_profiles WHERE tenant = $1 AND "
                         "name = $2 AND version < $3"
                         " AND record IS NOT NULL ORDER BY version DESC LIMIT $4",
                         {tenant.id(), name, before, int64_t{page.rows()} + 1}));
  if (rows.empty() && page.token.empty()) return NoSuchProfile();
  return Page(tenant, name, rows, page);
}

absl::StatusOr<std::vector<ProfileAlias>> SqlProfileStore::ListAliases(
    const Tenant& tenant, const std::string& name) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  std::vector<ProfileAlias> aliases;
  RETURN_IF_ERROR(database_->Read(tenant, [&](SqlSession& session) {
    ASSIGN_OR_RETURN(const auto rows, AliasRows(session, tenant, name));
    for (const AliasRow& row : rows) {
      if (!CheckProfileAlias("alias", row.alias).ok()) continue;  // a damaged row
      aliases.push_back({.alias = row.alias, .version = row.version});
    }
    return absl::OkStatus();
  }));
  return aliases;
}

absl::Status SqlProfileStore::SetAlias(const Tenant& tenant, const PutAlias& put) {
  RETURN_IF_ERROR(CheckProfileName("name", put.name));
  RETURN_IF_ERROR(CheckProfileAlias("alias", put.alias));
  RETURN_IF_ERROR(CheckExpectedVersion(put.expected_version));
  if (put.version < 0) return InvalidField("version", "must not be negative");
  const auto body = [&](SqlSession& session) -> absl::StatusOr<SqlEnd> {
    const absl::StatusOr<SqlEnd> end =
        put.version == 0 ? UnnameVersions(session, tenant, put) : NameVersion(session, tenant, put);
    if (!end.ok() || *end == SqlEnd::kRollback) return end;
    if (ETA_FAILPOINT(kStoreAlias)) return StoreFull();
    RETURN_IF_ERROR(NoteChange(session, tenant, put.name));
    return SqlEnd::kCommit;
  };
  const absl::Status status = database_->Write(tenant, body);
  if (status.ok()) feed_.Tell({.tenant = tenant, .name = put.name});
  return status;
}

absl::Status SqlProfileStore::Promote(const Tenant& tenant, const PromoteProfile& promote) {
  RETURN_IF_ERROR(CheckProfileName("name", promote.name));
  RETURN_IF_ERROR(CheckExpectedVersion(promote.expected_version));
  if (promote.version < 1) return InvalidField("version", "must be at least 1");
  std::vector<int64_t> removed;
  const auto body = [&](SqlSession& session) -> absl::StatusOr<SqlEnd> {
    removed.clear();
    ASSIGN_OR_RETURN(const auto state, FindVersion(session, tenant, promote.name, promote.version));
    if (!state) return NoSuchProfile();
    const std::string model = CountedModel(Served(), state->fingerprint);
    ASSIGN_OR_RETURN(const int64_t newest, NewestVersion(session, tenant, promote.name, model));
    if (newest == promote.version) return SqlEnd::kRollback;
    const bool expected = !promote.expected_version || *promote.expected_version == newest;
    if (!expected || newest > promote.version) return VersionMismatch(newest);
    const SqlRows done = session.Run(
        "UPDATE eta_profiles SET staged = 0 WHERE tenant = $1 AND name = $2 AND version = $3",
        std::vector<SqlValue>{tenant.id(), promote.name, promote.version});
    RETURN_IF_ERROR(done.status());
    if (ETA_FAILPOINT(kStorePut)) return StoreFull();
    ASSIGN_OR_RETURN(SurplusVersions surplus, Surplus(session, tenant, promote.name,
                                                      model.empty() ? state->fingerprint : model,
                                                      /*staged=*/false, /*added=*/0));
    for (const int64_t version : surplus.versions) {
      RETURN_IF_ERROR(DropVersion(session, tenant, promote.name, version));
    }
    removed = std::move(surplus.versions);
    RETURN_IF_ERROR(NoteChange(session, tenant, promote.name));
    return SqlEnd::kCommit;
  };
  RETURN_IF_ERROR(database_->Write(tenant, body));
  TellRemoved(tenant, promote.name, removed);
  feed_.Tell({.tenant = tenant, .name = promote.name});
  return absl::OkStatus();
}

absl::Status SqlProfileStore::DeleteVersion(const Tenant& tenant, const std::string& name,
                                            int64_t version) {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  if (version < 1) return InvalidField("version", "must be at least 1");
  const auto body = [&](SqlSession& session) -> absl::StatusOr<SqlEnd> {
    ASSIGN_OR_RETURN(const auto state, FindVersion(session, tenant, name, version));
    if (!state) return NoSuchProfile();
    ASSIGN_OR_RETURN(const auto aliases, AliasRows(session, tenant, name));
    for (const AliasRow& row : aliases) {
      if (row.version == version) return VersionHasAlias(row.alias);
    }
    RETURN_IF_ERROR(DropVersion(session, tenant, name, version));
    if (ETA_FAILPOINT(kStoreDelete)) return StoreFull();
    RETURN_IF_ERROR(NoteChange(session, tenant, name));
    return SqlEnd::kCommit;
  };
  RETURN_IF_ERROR(database_->Write(tenant, body));
  quarantine_.Forget(tenant, name, version);
  feed_.Tell({.tenant = tenant, .name = name});
  return absl::OkStatus();
}

absl::Status SqlProfileStore::Delete(const Tenant& tenant, const std::string& name,
                                     std::optional<int64_t> expected_version) {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  RETURN_IF_ERROR(CheckExpectedVersion(expected_version));
  const std::vector<SqlValue> key = {tenant.id(), name};
  const auto body = [&](SqlSession& session) -> absl::StatusOr<SqlEnd> {
    ASSIGN_OR_RETURN(const int64_t highest, HighestVersion(session, tenant, name));
    if (highest == 0) return NoSuchProfile();
    if (expected_version && *expected_version != highest) return VersionMismatch(highest);
    for (const char* statement : {"UPDATE eta_profiles SET record = NULL"
                                  " WHERE tenant = $1 AND name = $2 AND record IS NOT NULL",
                                  "DELETE FROM eta_aliases WHERE tenant = $1 AND name = $2"}) {
      RETURN_IF_ERROR(session.Run(statement, key).status());
      if (ETA_FAILPOINT(kStoreDelete)) return StoreFull();
    }
    RETURN_IF_ERROR(NoteChange(session, tenant, name));
    return SqlEnd::kCommit;
  };
  RETURN_IF_ERROR(database_->Write(tenant, body));
  quarantine_.Forget(tenant, name);
  feed_.Tell({.tenant = tenant, .name = name});
  return absl::OkStatus();
}

Lease SqlProfileStore::Watch(ProfileWatcher watcher) {
  return feed_.Watch(std::move(watcher));
}

absl::Status SqlProfileStore::Health() const {
  const absl::Status status = database_->Health();
  return status.ok() ? quarantine_.Health() : status;
}

// A database that cannot be asked now is asked again at the next look.
void SqlProfileStore::PollForChanges() {
  (void)database_->Poll([this](SqlSession& session) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<SqlRow> now,
                     session.Run("SELECT revision FROM eta_store", {}));
    const int64_t revision = now.empty() ? 0 : Integer(now.front()[0]);
    // The first look does not know what was missed. Neither does a look that finds an older
    // database.
    const bool all = !seen_revision_ || revision < *seen_revision_;
    if (!all && revision == *seen_revision_) return absl::OkStatus();
    const absl::Status told = all ? TellAll(session) : TellSince(session, *seen_revision_);
    // This comes last: if telling throws, the next look tells again.
    if (told.ok()) seen_revision_ = revision;
    return told;
  });
}

absl::Status SqlProfileStore::TellAll(SqlSession& session) {
  ASSIGN_OR_RETURN(
      const std::vector<SqlRow> used,
      session.Run("SELECT tenant, versions, bytes, versions_ever FROM eta_uses LIMIT $1",
                  std::vector<SqlValue>{kMaxUses}));
  NoteUses(/*all=*/true, used);
  feed_.Tell({});
  return absl::OkStatus();
}

absl::Status SqlProfileStore::TellSince(SqlSession& session, int64_t revision) {
  ASSIGN_OR_RETURN(
      const std::vector<SqlRow> used,
      session.Run("SELECT tenant, versions, bytes, versions_ever FROM eta_uses WHERE tenant IN"
                  " (SELECT tenant FROM eta_changes WHERE revision > $1)",
                  std::vector<SqlValue>{revision}));
  ASSIGN_OR_RETURN(const std::vector<SqlRow> rows,
                   session.Run("SELECT tenant, name FROM eta_changes WHERE revision > $1",
                               std::vector<SqlValue>{revision}));
  NoteUses(/*all=*/false, used);
  for (const SqlRow& row : rows) {
    const absl::StatusOr<Tenant> tenant = Tenant::Parse(Text(row[0]));
    if (tenant.ok()) feed_.Tell({.tenant = *tenant, .name = Text(row[1])});
  }
  return absl::OkStatus();
}

void SqlProfileStore::NoteUses(bool all, const std::vector<SqlRow>& rows) {
  const MutexLock lock(mutex_);
  if (all) {
    uses_.clear();
    uses_complete_ = true;
  }
  for (const SqlRow& row : rows) uses_[Text(row[0])] = UseOf(row);
  if (std::ssize(uses_) < kMaxUses) return;
  uses_complete_ = false;
  if (std::ssize(uses_) > kMaxUses) uses_.clear();
}

std::optional<ProfileUse> SqlProfileStore::Use(const Tenant& tenant) const {
  const MutexLock lock(mutex_);
  const auto found = uses_.find(tenant.id());
  if (found != uses_.end()) return found->second;
  return uses_complete_ ? std::optional(ProfileUse()) : std::nullopt;
}

}  // namespace eta
