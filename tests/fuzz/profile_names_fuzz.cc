// Any texts as names of tenants, profiles, aliases and requests. The validator takes exactly the
// allowed ones; and with the validator passed by, hostile texts are data to the database all the
// same: they come back as they were, in their own row, and touch no other.
//
// Input: lines of name, alias, tenant and request id.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "calibration/profiles/profile_record.h"
#include "calibration/profiles/store/sql/sql_database.h"
#include "calibration/profiles/store/sql/sqlite_database.h"
#include "engine/request/request_validation.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::SqlBytes;
using eta::SqlEnd;
using eta::SqlRow;
using eta::SqlSession;
using eta::SqlValue;
using eta::fuzz::Require;

eta::SqlDatabase& Database() {
  static const eta::TempFolder folder(eta::FastParent());
  static const std::unique_ptr<eta::SqliteDatabase> database =
      *eta::SqliteDatabase::Open(folder.path() + "/profiles.db", std::chrono::seconds(1));
  return *database;
}

bool Allowed(std::string_view name) {
  return !name.empty() && name.size() <= 63 && name.front() != '.' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.") == name.npos;
}

void CheckValidators(const std::string& name, const std::string& alias, const std::string& tenant,
                     const std::string& request_id) {
  const absl::Status named = eta::CheckProfileName("name", name);
  Require(named.ok() == Allowed(name));
  if (!named.ok()) eta::fuzz::RequireReadable(named);
  const bool letter = !alias.empty() && alias.front() >= 'a' && alias.front() <= 'z';
  Require(eta::CheckProfileAlias("alias", alias).ok() == (letter && Allowed(alias)));
  const auto printable = [](std::string_view text, size_t most) {
    return !text.empty() && text.size() <= most &&
           std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  };
  Require(eta::Tenant::Parse(tenant).ok() == printable(tenant, 255));
  Require(eta::IsRequestId(request_id) == printable(request_id, 64));
}

int64_t Number(SqlSession& session, const char* statement) {
  const auto rows = session.Run(statement, {});
  Require(rows.ok() && rows->size() == 1);
  return std::get<int64_t>(rows->front().front());
}

absl::StatusOr<SqlEnd> PutAndLook(SqlSession& session, const std::string& name,
                                  const std::string& alias, const std::string& tenant,
                                  const std::string& request_id) {
  const std::vector<SqlValue> own = {tenant, name, alias, int64_t{1}};
  const std::vector<SqlValue> row = {tenant,     name,  int64_t{1},    int64_t{2},
                                     request_id, alias, SqlBytes{name}};
  Require(session
              .Run("INSERT INTO eta_profiles (tenant, name, version, create_time_us, request_id,"
                   " payload_digest, record) VALUES ($1, $2, $3, $4, $5, $6, $7)",
                   row)
              .ok());
  Require(session
              .Run("INSERT INTO eta_aliases (tenant, name, alias, version, model_fingerprint)"
                   " VALUES ($1, $2, $3, $4, $3)",
                   own)
              .ok());
  Require(Number(session, "SELECT COUNT(*) FROM eta_profiles") == 1);
  Require(Number(session, "SELECT COUNT(*) FROM eta_aliases") == 1);
  Require(Number(session, "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table'") == 5);
  const auto back = session.Run(
      "SELECT name, request_id, payload_digest, record FROM eta_profiles"
      " WHERE tenant = $1 AND name = $2 AND request_id = $3",
      std::vector<SqlValue>{tenant, name, request_id});
  Require(back.ok() && back->size() == 1);
  const SqlRow& got = back->front();
  Require(std::get<std::string>(got[0]) == name && std::get<std::string>(got[1]) == request_id);
  Require(std::get<std::string>(got[2]) == alias && std::get<SqlBytes>(got[3]).bytes == name);
  const auto others = session.Run("SELECT name FROM eta_profiles WHERE tenant = $1",
                                  std::vector<SqlValue>{tenant + "x"});
  Require(others.ok() && others->empty());
  Require(session
              .Run("DELETE FROM eta_aliases WHERE tenant = $1 AND name = $2 AND alias = $3"
                   " AND version = $4",
                   own)
              .ok());
  Require(Number(session, "SELECT COUNT(*) FROM eta_aliases") == 0);
  return SqlEnd::kRollback;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  eta::fuzz::InputReader reader(data, size);
  const std::string name(reader.Until('\n'));
  const std::string alias(reader.Until('\n'));
  const std::string tenant(reader.Until('\n'));
  const std::string request_id(reader.rest());
  CheckValidators(name, alias, tenant, request_id);
  static const eta::Tenant acme = *eta::Tenant::Parse("acme");
  Require(Database()
              .Write(acme,
                     [&](SqlSession& session) {
                       return PutAndLook(session, name, alias, tenant, request_id);
                     })
              .ok());
  return 0;
}
