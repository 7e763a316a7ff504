// A connection to an SQLite file beside the store.
#pragma once

#include <sqlite3.h>

#include <string>

#include "gtest/gtest.h"

namespace eta {

class SqliteClient {
 public:
  explicit SqliteClient(const std::string& path) {
    EXPECT_EQ(sqlite3_open(path.c_str(), &handle_), SQLITE_OK);
  }
  ~SqliteClient() { sqlite3_close(handle_); }
  SqliteClient(const SqliteClient&) = delete;
  SqliteClient& operator=(const SqliteClient&) = delete;

  // Returns the first value of the last row. An error fails the test.
  std::string operator()(const std::string& sql) const {
    std::string answer;
    const auto row = [](void* to, int, char** values, char**) {
      *static_cast<std::string*>(to) = values[0] != nullptr ? values[0] : "";
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(handle_, sql.c_str(), row, &answer, nullptr), SQLITE_OK)
        << sql << ": " << sqlite3_errmsg(handle_);
    return answer;
  }

 private:
  sqlite3* handle_ = nullptr;
};

}  // namespace eta
