#include "calibration/profiles/store/sql_profile_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/store/page_token.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "kernels/failpoint.h"

namespace eta {
namespace {

constexpr int64_t kMaxAliases = 16;
constexpr int64_t kMaxUses = 100'000;  // tenants whose use is kept in memory: tens of MB

using Rows = absl::StatusOr<std::vector<SqlRow>>;

int64_t Integer(const SqlValue& value) {
  const int64_t* integer = std::get_if<int64_t>(&value);
  return integer != nullptr ? *integer : 0;
}
std::string Text(const SqlValue& value) {
  const std::string* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : std::string();
}
SqlValue TextOrNull(const std::string& text) {
  return text.empty() ? SqlValue() : SqlValue(text);
}

absl::Status RowCorrupt() {
  return MakeError(absl::StatusCode::kDataLoss, "a stored profile is in another's place",
                   {.reason = "PROFILE_CORRUPT"});
}

// Selects rows for Record().
constexpr char kSelectRecord[] =
    "SELECT name, version, create_time_us, request_id, payload_digest, record FROM eta_profiles"
    " WHERE tenant = $1";

// The record of a row, whose blob must say what its columns say.
absl::StatusOr<ProfilePtr> Record(const Tenant& tenant, const SqlRow& row) {
  const SqlBytes* blob = std::get_if<SqlBytes>(&row[5]);
  if (blob == nullptr) return NoSuchProfile();
  absl::StatusOr<ProfileRecord> record = DecodeProfile(blob->bytes);
  if (!record.ok()) return record.status();
  if (record->tenant != tenant || record->name != Text(row[0]) ||
      record->version != Integer(row[1]) || record->create_time_us != Integer(row[2]) ||
      record->request_id != Text(row[3]) || record->payload_digest != Text(row[4])) {
    return RowCorrupt();
  }
  return std::make_shared<const ProfileRecord>(*std::move(record));
}

// Returns the record that a request id was used for; null if it was not used yet.
absl::StatusOr<ProfilePtr> RequestRecord(SqlSession& session, const Tenant& tenant,
                                         const PutProfile& put) {
  if (put.request_id.empty()) return ProfilePtr();
  const Rows rows = session.Run(absl::StrCat(kSelectRecord, " AND request_id = $2").c_str(),
                                std::vector<SqlValue>{tenant.id(), put.request_id});
  if (!rows.ok()) return rows.status();
  if (rows->empty()) return ProfilePtr();
  const SqlRow& row = rows->front();
  if (Text(row[0]) != put.name || Text(row[4]) != put.payload_digest) return RequestIdReused();
  return Record(tenant, row);
}

// 0 if there is no version.
struct NameState {
  int64_t last = 0;    // the highest version ever, deleted ones too
  int64_t newest = 0;  // the highest version that exists
};
absl::StatusOr<NameState> ReadName(SqlSession& session, const Tenant& tenant,
                                   const std::string& name) {
  // Two look-ups, however many versions there are: every Put asks this while other writes wait.
  const Rows rows = session.Run(
      "SELECT (SELECT MAX(version) FROM eta_profiles WHERE tenant = $1 AND name = $2),"
      " (SELECT version FROM eta_profiles WHERE tenant = $1 AND name = $2 AND record IS NOT NULL"
      "  ORDER BY version DESC LIMIT 1)",
      std::vector<SqlValue>{tenant.id(), name});
  if (!rows.ok()) return rows.status();
  return NameState{.last = Integer(rows->front()[0]), .newest = Integer(rows->front()[1])};
}

absl::Status CheckExpected(const NameState& state, std::optional<int64_t> expected) {
  if (!expected || *expected == state.newest) return absl::OkStatus();
  return *expected == 0 ? ProfileExists() : VersionMismatch();
}

absl::Status CheckExpectedField(std::optional<int64_t> expected) {
  if (!expected || *expected >= 0) return absl::OkStatus();
  return InvalidField("expected_version", "must not be negative");
}

// Checks all fields but the content.
absl::Status CheckPutFields(const PutProfile& put) {
  RETURN_IF_ERROR(CheckProfileName("name", put.name));
  RETURN_IF_ERROR(CheckRequestIdentity(put.request_id, put.payload_digest));
  return CheckExpectedField(put.expected_version);
}

// Reads a row of tenant, versions, bytes, versions_ever.
ProfileUse UseOf(const SqlRow& row) {
  return {.versions = Integer(row[1]), .bytes = Integer(row[2]), .versions_ever = Integer(row[3])};
}

absl::Status CheckQuota(SqlSession& session, const Tenant& tenant, const ProfileQuota& quota,
                        int64_t added_bytes) {
  const Rows rows =
      session.Run("SELECT tenant, versions, bytes, versions_ever FROM eta_uses WHERE tenant = $1",
                  std::vector<SqlValue>{tenant.id()});
  if (!rows.ok()) return rows.status();
  const ProfileUse use = rows->empty() ? ProfileUse() : UseOf(rows->front());
  if (use.versions_ever >= quota.versions_ever) {
    return OverProfileQuota("profile versions, deleted ones too", quota.versions_ever);
  }
  if (use.versions >= quota.versions) return OverProfileQuota("profiles", quota.versions);
  if (added_bytes > quota.bytes - use.bytes) {
    return OverProfileQuota("bytes of profiles", quota.bytes);
  }
  return absl::OkStatus();
}

// Raises the revision and records whose profile changed.
absl::Status NoteChange(SqlSession& session, const Tenant& tenant, const std::string& name) {
  const Rows raised = session.Run("UPDATE eta_store SET revision = revision + 1", {});
  if (!raised.ok()) return raised.status();
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
    : quota_(options.quota),
      quota_of_(options.quota_of),
      database_(std::move(database)),
      poll_(
          options.poll_interval, [this] { PollForChanges(); },
          [this] { return database_->News(); }) {}

ProfileQuota SqlProfileStore::QuotaOf(const Tenant& tenant) const {
  return quota_of_ ? quota_of_(tenant) : quota_;
}

Rows SqlProfileStore::Query(const Tenant& tenant, const char* statement,
                            const std::vector<SqlValue>& values) const {
  Rows rows = std::vector<SqlRow>();
  const absl::Status status = database_->Read(tenant, [&](SqlSession& session) {
    rows = session.Run(statement, values);
    return rows.status();
  });
  if (!status.ok()) return status;
  return rows;
}

absl::StatusOr<ProfilePtr> SqlProfileStore::FindRequest(const Tenant& tenant,
                                                        const PutProfile& put) const {
  absl::StatusOr<ProfilePtr> found = ProfilePtr();
  const absl::Status status = database_->Read(tenant, [&](SqlSession& session) {
    found = RequestRecord(session, tenant, put);
    return found.status();
  });
  if (!status.ok()) return status;
  return found;
}

absl::StatusOr<SqlEnd> SqlProfileStore::Insert(SqlSession& session, const Tenant& tenant,
                                               const PutProfile& put, ProfilePtr& stored) const {
  const absl::StatusOr<ProfilePtr> before = RequestRecord(session, tenant, put);
  if (!before.ok()) return before.status();
  stored = *before;
  if (stored != nullptr) return SqlEnd::kRollback;

  const absl::StatusOr<NameState> state = ReadName(session, tenant, put.name);
  if (!state.ok()) return state.status();
  RETURN_IF_ERROR(CheckExpected(*state, put.expected_version));
  ProfileRecord record{.tenant = tenant,
                       .name = put.name,
                       .version = state->last + 1,
                       .create_time_us = absl::ToUnixMicros(absl::Now()),
                       .request_id = put.request_id,
                       .payload_digest = put.payload_digest,
                       .content = put.content,
                       .checksum = ""};
  absl::StatusOr<std::string> blob = EncodeProfile(record);
  if (!blob.ok()) return blob.status();
  const absl::Status room =
      CheckQuota(session, tenant, QuotaOf(tenant), static_cast<int64_t>(blob->size()));
  if (!room.ok()) return room;
  const Rows inserted = session.Run(
      "INSERT INTO eta_profiles"
      " (tenant, name, version, create_time_us, request_id, payload_digest, record)"
      " VALUES ($1, $2, $3, $4, $5, $6, $7)",
      std::vector<SqlValue>{tenant.id(), record.name, record.version, record.create_time_us,
                            TextOrNull(record.request_id), TextOrNull(record.payload_digest),
                            SqlBytes{*std::move(blob)}});
  if (!inserted.ok()) return inserted.status();
  if (ETA_FAILPOINT(kStorePut)) return StoreFull();
  RETURN_IF_ERROR(NoteChange(session, tenant, put.name));
  stored = std::make_shared<const ProfileRecord>(std::move(record));
  return SqlEnd::kCommit;
}

absl::StatusOr<ProfilePtr> SqlProfileStore::Put(const Tenant& tenant, const PutProfile& put) {
  RETURN_IF_ERROR(CheckPutFields(put));
  RETURN_IF_ERROR(CheckProfileContent(put.content));
  ProfilePtr stored;
  const absl::Status status = database_->Write(
      tenant, [&](SqlSession& session) { return Insert(session, tenant, put, stored); });
  if (HasReason(status, "OUTCOME_UNKNOWN") && !put.request_id.empty()) {
    const absl::StatusOr<ProfilePtr> found = FindRequest(tenant, put);
    if (!found.ok() || *found == nullptr) return status;
    stored = *found;
  } else if (!status.ok()) {
    return status;
  }
  feed_.Tell({.tenant = tenant, .name = put.name});
  return stored;
}

absl::StatusOr<ProfilePtr> SqlProfileStore::CheckPut(const Tenant& tenant,
                                                     const PutProfile& put) const {
  RETURN_IF_ERROR(CheckPutFields(put));
  absl::StatusOr<ProfilePtr> found = ProfilePtr();
  const absl::Status status = database_->Read(tenant, [&](SqlSession& session) -> absl::Status {
    found = RequestRecord(session, tenant, put);
    if (!found.ok() || *found != nullptr) return found.status();
    const absl::StatusOr<NameState> state = ReadName(session, tenant, put.name);
    if (!state.ok()) return state.status();
    RETURN_IF_ERROR(CheckExpected(*state, put.expected_version));
    return CheckQuota(session, tenant, QuotaOf(tenant), 1);
  });
  if (!status.ok()) return status;
  const absl::Status health = database_->Health();
  if (*found == nullptr && HasReason(health, "STORE_FAILED")) return health;
  return found;
}

absl::StatusOr<ProfilePtr> SqlProfileStore::Get(const Tenant& tenant, const std::string& name,
                                                const ProfileSelector& selector) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  std::vector<SqlValue> values = {tenant.id(), name};
  std::string which = " AND record IS NOT NULL ORDER BY version DESC LIMIT 1";
  if (const int64_t* version = std::get_if<int64_t>(&selector)) {
    if (*version < 1) return InvalidField("version", "must be at least 1");
    values.emplace_back(*version);
    which = " AND version = $3";
  } else if (const std::string* alias = std::get_if<std::string>(&selector)) {
    RETURN_IF_ERROR(CheckProfileAlias("alias", *alias));
    values.emplace_back(*alias);
    which =
        " AND version = (SELECT version FROM eta_aliases"
        " WHERE tenant = $1 AND name = $2 AND alias = $3)";
  }
  const std::string statement = absl::StrCat(kSelectRecord, " AND name = $2", which);
  const Rows rows = Query(tenant, statement.c_str(), values);
  if (!rows.ok()) return rows.status();
  if (rows->empty()) return NoSuchProfile();
  absl::StatusOr<ProfilePtr> record = Record(tenant, rows->front());
  quarantine_.Note(tenant, name, Integer(rows->front()[1]), record.status());
  return record;
}

// Makes a page from rows of name, version, create time, bytes. The query asked for one row more
// than fits. A name that could not have been put is a damaged row: Health reports it, and it is not
// listed.
ProfileList SqlProfileStore::Page(const Tenant& tenant, const std::string& listing,
                                  const std::vector<SqlRow>& rows, const ProfilePage& page) const {
  ProfileList list;
  const size_t size = std::min(rows.size(), static_cast<size_t>(page.size));
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
  const absl::StatusOr<std::string> last = ReadNamePage(tenant, page);
  if (!last.ok()) return last.status();
  const Rows rows =
      Query(tenant,
            "SELECT p.name, p.version, p.create_time_us, LENGTH(p.record) FROM eta_profiles p JOIN"
            " (SELECT name, MAX(version) AS version FROM eta_profiles"
            "  WHERE tenant = $1 AND name > $2 AND record IS NOT NULL"
            "  GROUP BY name ORDER BY name LIMIT $3) n"
            " ON p.tenant = $1 AND p.name = n.name AND p.version = n.version ORDER BY p.name",
            {tenant.id(), *last, int64_t{page.size} + 1});
  if (!rows.ok()) return rows.status();
  return Page(tenant, "", *rows, page);
}

absl::StatusOr<ProfileList> SqlProfileStore::ListVersions(const Tenant& tenant,
                                                          const std::string& name,
                                                          const ProfilePage& page) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  const absl::StatusOr<int64_t> before = ReadVersionPage(tenant, name, page);
  if (!before.ok()) return before.status();
  const Rows rows = Query(tenant,
                          "SELECT name, version, create_time_us, LENGTH(record) FROM eta_profiles"
                          " WHERE tenant = $1 AND name = $2 AND version < $3"
                          " AND record IS NOT NULL ORDER BY version DESC LIMIT $4",
                          {tenant.id(), name, *before, int64_t{page.size} + 1});
  if (!rows.ok()) return rows.status();
  if (rows->empty() && page.token.empty()) return NoSuchProfile();
  return Page(tenant, name, *rows, page);
}

absl::StatusOr<std::vector<ProfileAlias>> SqlProfileStore::ListAliases(
    const Tenant& tenant, const std::string& name) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  const Rows rows = Query(tenant,
                          "SELECT alias, version FROM eta_aliases"
                          " WHERE tenant = $1 AND name = $2 ORDER BY alias",
                          {tenant.id(), name});
  if (!rows.ok()) return rows.status();
  std::vector<ProfileAlias> aliases;
  for (const SqlRow& row : *rows) {
    const std::string alias = Text(row[0]);
    if (!CheckProfileAlias("alias", alias).ok()) continue;  // a damaged row
    aliases.push_back({.alias = alias, .version = Integer(row[1])});
  }
  return aliases;
}

absl::Status SqlProfileStore::SetAlias(const Tenant& tenant, const PutAlias& put) {
  RETURN_IF_ERROR(CheckProfileName("name", put.name));
  RETURN_IF_ERROR(CheckProfileAlias("alias", put.alias));
  RETURN_IF_ERROR(CheckExpectedField(put.expected_version));
  if (put.version < 0) return InvalidField("version", "must not be negative");
  const std::vector<SqlValue> key = {tenant.id(), put.name, put.alias};
  const auto body = [&](SqlSession& session) -> absl::StatusOr<SqlEnd> {
    const Rows named = session.Run(
        "SELECT version, CASE WHEN alias = $3 THEN 1 ELSE 0 END FROM eta_aliases"
        " WHERE tenant = $1 AND name = $2",
        key);
    if (!named.ok()) return named.status();
    int64_t current = 0;
    for (const SqlRow& row : *named) {
      if (Integer(row[1]) == 1) current = Integer(row[0]);
    }
    if (put.expected_version && *put.expected_version != current) return VersionMismatch();
    if (put.version == 0) {
      if (current == 0) return NoSuchProfile();
      const Rows removed = session.Run(
          "DELETE FROM eta_aliases WHERE tenant = $1 AND name = $2 AND alias = $3", key);
      if (!removed.ok()) return removed.status();
    } else {
      const Rows there = session.Run(
          "SELECT version FROM eta_profiles"
          " WHERE tenant = $1 AND name = $2 AND version = $3 AND record IS NOT NULL",
          std::vector<SqlValue>{tenant.id(), put.name, put.version});
      if (!there.ok()) return there.status();
      if (there->empty()) return NoSuchProfile();
      if (current == put.version) return SqlEnd::kRollback;
      if (current == 0 && static_cast<int64_t>(named->size()) >= kMaxAliases) {
        return OverProfileQuota("aliases of a profile", kMaxAliases);
      }
      const Rows set = session.Run(
          "INSERT INTO eta_aliases (tenant, name, alias, version) VALUES ($1, $2, $3, $4)"
          " ON CONFLICT (tenant, name, alias) DO UPDATE SET version = excluded.version",
          std::vector<SqlValue>{tenant.id(), put.name, put.alias, put.version});
      if (!set.ok()) return set.status();
    }
    if (ETA_FAILPOINT(kStoreAlias)) return StoreFull();
    RETURN_IF_ERROR(NoteChange(session, tenant, put.name));
    return SqlEnd::kCommit;
  };
  const absl::Status status = database_->Write(tenant, body);
  if (status.ok()) feed_.Tell({.tenant = tenant, .name = put.name});
  return status;
}

absl::Status SqlProfileStore::Delete(const Tenant& tenant, const std::string& name,
                                     std::optional<int64_t> expected_version) {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  RETURN_IF_ERROR(CheckExpectedField(expected_version));
  const std::vector<SqlValue> key = {tenant.id(), name};
  const auto body = [&](SqlSession& session) -> absl::StatusOr<SqlEnd> {
    const absl::StatusOr<NameState> state = ReadName(session, tenant, name);
    if (!state.ok()) return state.status();
    if (state->newest == 0) return NoSuchProfile();
    if (expected_version && *expected_version != state->newest) return VersionMismatch();
    for (const char* statement : {"UPDATE eta_profiles SET record = NULL"
                                  " WHERE tenant = $1 AND name = $2 AND record IS NOT NULL",
                                  "DELETE FROM eta_aliases WHERE tenant = $1 AND name = $2"}) {
      if (const Rows done = session.Run(statement, key); !done.ok()) return done.status();
      if (ETA_FAILPOINT(kStoreDelete)) return StoreFull();
    }
    RETURN_IF_ERROR(NoteChange(session, tenant, name));
    return SqlEnd::kCommit;
  };
  const absl::Status status = database_->Write(tenant, body);
  if (!status.ok()) return status;
  quarantine_.Forget(tenant, name);
  feed_.Tell({.tenant = tenant, .name = name});
  return status;
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
    const Rows now = session.Run("SELECT revision FROM eta_store", {});
    if (!now.ok()) return now.status();
    const int64_t revision = now->empty() ? 0 : Integer(now->front()[0]);
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
  const Rows used =
      session.Run("SELECT tenant, versions, bytes, versions_ever FROM eta_uses LIMIT $1",
                  std::vector<SqlValue>{kMaxUses});
  if (!used.ok()) return used.status();
  NoteUses(/*all=*/true, *used);
  feed_.Tell({});
  return absl::OkStatus();
}

absl::Status SqlProfileStore::TellSince(SqlSession& session, int64_t revision) {
  const Rows used = session.Run(
      "SELECT tenant, versions, bytes, versions_ever FROM eta_uses WHERE tenant IN"
      " (SELECT tenant FROM eta_changes WHERE revision > $1)",
      std::vector<SqlValue>{revision});
  if (!used.ok()) return used.status();
  const Rows rows = session.Run("SELECT tenant, name FROM eta_changes WHERE revision > $1",
                                std::vector<SqlValue>{revision});
  if (!rows.ok()) return rows.status();
  NoteUses(/*all=*/false, *used);
  for (const SqlRow& row : *rows) {
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
