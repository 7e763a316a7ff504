// A test with a database of its own on the shared PostgreSQL server. It is skipped if there is
// none.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "calibration/profiles/store/open_profile_store.h"
#include "gtest/gtest.h"
#include "tests/testing/profiles/postgres_server.h"
#include "tests/testing/profiles/store_case.h"

namespace eta {

class PostgresStoreFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = PostgresServer::Get();
    if (server_ == nullptr) GTEST_SKIP() << PostgresServer::MissingReason();
    url_ = server_->NewDatabase();
  }
  std::unique_ptr<ProfileStore> Open(
      const ProfileStoreOptions& options = StorePlace::FastOptions()) {
    auto store = OpenProfileStore(url_, options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  PostgresServer* server_ = nullptr;
  std::string url_;
};

}  // namespace eta
