// A connection to PostgreSQL beside the store.
#pragma once

#include <libpq-fe.h>

#include <string>

namespace eta {

class PostgresClient {
 public:
  explicit PostgresClient(const std::string& url) : handle_(PQconnectdb(url.c_str())) {}
  ~PostgresClient() { PQfinish(handle_); }
  PostgresClient(const PostgresClient&) = delete;
  PostgresClient& operator=(const PostgresClient&) = delete;

  // Returns the first value of the last statement, or the SQLSTATE of an error.
  std::string operator()(const std::string& sql) {
    PGresult* result = PQexec(handle_, sql.c_str());
    const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    std::string answer = state != nullptr        ? state
                         : PQntuples(result) > 0 ? PQgetvalue(result, 0, 0)
                                                 : "";
    PQclear(result);
    return answer;
  }

 private:
  PGconn* handle_;
};

}  // namespace eta
