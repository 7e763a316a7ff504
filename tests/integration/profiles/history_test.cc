// Eight clients at two servers with one store. Meanwhile servers are killed, also in the middle of
// a commit; the store fails around commits and reads; connections to the database are cut around a
// COMMIT; and the database is stopped. What the clients saw is recorded. It must be possible for a
// store that keeps its promises (tests/testing/profiles/profile_history.h).
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "calibration/profiles/profile_json.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/environment.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/profiles/postgres_relay.h"
#include "tests/testing/profiles/postgres_server.h"
#include "tests/testing/profiles/profile_history.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Event = ProfileEvent;

constexpr int kClients = 8;
constexpr int kReplicas = 2;
constexpr int kMostRepetitions = 20;
constexpr std::array kNames = {"legal", "medical", "code", "chat"};
constexpr std::array kAliases = {"stable", "next"};

// A server that is killed and restarted at another address.
class Slot {
 public:
  Slot(const std::string& model, const std::string& store) : model_(model), store_(store) {
    Start();
  }

  std::shared_ptr<Replica> get() const {
    const std::lock_guard lock(mutex_);
    return replica_;
  }
  void KillAndStart() {
    const auto victim = get();
    victim->process().Signal(SIGKILL);
    Start();
  }

 private:
  void Start() {
    auto replica = std::make_shared<Replica>(model_, store_);
    EXPECT_TRUE(replica->up());
    const std::lock_guard lock(mutex_);
    replica_ = std::move(replica);
  }

  const std::string model_, store_;
  mutable std::mutex mutex_;
  std::shared_ptr<Replica> replica_;
};

using Slots = std::array<std::unique_ptr<Slot>, kReplicas>;

// The end of a call, in the terms of the record.
enum class End { kDone, kNotFound, kRefused, kLost };

End EndOf(const grpc::Status& status, bool write) {
  if (status.ok()) return End::kDone;
  const std::string reason = ReasonOf(status);
  if (reason == "PROFILE_NOT_FOUND") return End::kNotFound;
  if (!write || (!reason.empty() && reason != "OUTCOME_UNKNOWN")) return End::kRefused;
  // The client library had no connection on which to send it.
  if (status.error_message().find("failed to connect to all addresses") != std::string::npos) {
    return End::kRefused;
  }
  return End::kLost;
}

class Client {
 public:
  Client(int number, const Slots& slots, const std::string& json, milliseconds pause)
      : number_(number),
        slots_(slots),
        json_(json),
        pause_(pause),
        random_(static_cast<uint32_t>(number + 1)) {}

  // Runs until `operations` operations are recorded. Refused ones are not recorded.
  void Run(int operations) {
    while (events_.size() < static_cast<size_t>(operations)) {
      Step();
      std::this_thread::sleep_for(pause_);
    }
  }
  const std::vector<Event>& events() const { return events_; }
  int lost() const { return lost_; }
  int refused() const { return refused_; }
  int calibrated() const { return calibrated_; }

 private:
  void Step() {
    Event event;
    event.name = kNames[random_() % kNames.size()];
    const uint32_t kind = random_() % 100;
    if (kind < 1) return Write(event, Event::kPut, &Client::Calibrate);
    if (kind < 28) return Write(event, Event::kPut, &Client::Import);
    event.alias = kAliases[random_() % kAliases.size()];
    // Mostly a version that exists: near the newest that this client knows of.
    event.version =
        std::max<int64_t>(0, seen_[event.name] + 1 - static_cast<int64_t>(random_() % 4));
    if (kind < 42) return Write(event, Event::kSetAlias, &Client::SetAlias);
    if (kind < 45) return Write(event, Event::kDelete, &Client::Delete);
    if (kind < 70) return Read(event, Event::kGetNewest, event.name);
    if (kind < 80 && event.version > 0) {
      return Read(event, Event::kGetVersion, absl::StrCat(event.name, "@", event.version));
    }
    Read(event, Event::kGetAlias, absl::StrCat(event.name, "@", event.alias));
  }

  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               steady_clock::now().time_since_epoch())
        .count();
  }
  Replica& Choose() {
    replica_ = slots_[random_() % kReplicas]->get();
    return *replica_;
  }
  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  }

  void Write(Event event, Event::Kind kind, grpc::Status (Client::*call)(Event&)) {
    event.kind = kind;
    event.begin = Now();
    if (kind == Event::kPut) event.seed = static_cast<uint32_t>(number_ + kClients * ++puts_ + 1);
    grpc::Status status = (this->*call)(event);
    End end = EndOf(status, /*write=*/true);
    // A put has a request id, so it is safe to repeat at any server.
    for (int i = 0; i < kMostRepetitions && kind == Event::kPut && end == End::kLost; ++i) {
      std::this_thread::sleep_for(milliseconds(100));
      status = (this->*call)(event);
      const End again = EndOf(status, /*write=*/true);
      // A refusal now does not tell whether the put was done before. A later deletion tells that it
      // was.
      end = again == End::kDone ? End::kDone : End::kLost;
      if (again == End::kNotFound) break;
    }
    if (end == End::kRefused) {
      ++refused_;
      return;
    }
    lost_ += end == End::kLost;
    event.end = end == End::kLost ? Event::kNever : Now();
    event.outcome = end == End::kDone       ? Event::kOk
                    : end == End::kNotFound ? Event::kNotFound
                                            : Event::kUnknown;
    Record(event);
  }
  void Read(Event event, Event::Kind kind, const std::string& reference) {
    event.kind = kind;
    v1::GetProfileRequest request;
    request.set_profile(reference);
    grpc::ClientContext context;
    SetDeadline(context);
    v1::Profile profile;
    event.begin = Now();
    const End end =
        EndOf(Choose().profiles->GetProfile(&context, request, &profile), /*write=*/false);
    event.end = Now();
    if (end == End::kRefused) {
      ++refused_;
      return;
    }
    event.outcome = end == End::kDone ? Event::kOk : Event::kNotFound;
    if (end == End::kDone) {
      event.version = profile.version();
      ReadSeed(profile, event);
    }
    Record(event);
  }
  void Record(const Event& event) {
    events_.push_back(event);
    if (event.outcome != Event::kOk) return;
    if (event.kind == Event::kPut || event.kind == Event::kGetNewest) {
      seen_[event.name] = event.version;
    }
  }
  static void ReadSeed(const v1::Profile& profile, Event& event) {
    const auto seed = profile.labels().find("seed");
    ASSERT_NE(seed, profile.labels().end());
    ASSERT_TRUE(absl::SimpleAtoi(seed->second, &event.seed));
  }

  std::string RequestId(const Event& event) const { return absl::StrCat("put-", event.seed); }
  grpc::Status Import(Event& event) {
    v1::ImportProfileRequest request;
    auto file = ProfileFromJson(json_);
    file->content.labels["seed"] = absl::StrCat(event.seed);
    request.set_json(*ProfileToJson(*file));
    request.set_name(event.name);
    request.set_request_id(RequestId(event));
    grpc::ClientContext context;
    SetDeadline(context);
    v1::Profile profile;
    const grpc::Status status = Choose().profiles->ImportProfile(&context, request, &profile);
    if (status.ok()) event.version = profile.version();
    return status;
  }
  grpc::Status Calibrate(Event& event) {
    v1::CalibrateRequest request = SmallCalibration(event.name);
    (*request.mutable_labels())["seed"] = absl::StrCat(event.seed);
    request.set_request_id(RequestId(event));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const auto reader = Choose().stub->Calibrate(&context, request);
    v1::CalibrateResponse message;
    while (reader->Read(&message)) {
      if (message.has_profile()) event.version = message.profile().version();
    }
    const grpc::Status status = reader->Finish();
    calibrated_ += status.ok();
    return status;
  }
  grpc::Status SetAlias(Event& event) {
    v1::SetProfileAliasRequest request;
    request.set_name(event.name);
    request.set_alias(event.alias);
    request.set_version(event.version);
    grpc::ClientContext context;
    SetDeadline(context);
    v1::SetProfileAliasResponse response;
    return Choose().profiles->SetProfileAlias(&context, request, &response);
  }
  grpc::Status Delete(Event& event) {
    v1::DeleteProfileRequest request;
    request.set_name(event.name);
    grpc::ClientContext context;
    SetDeadline(context);
    v1::DeleteProfileResponse response;
    return Choose().profiles->DeleteProfile(&context, request, &response);
  }

  const int number_;
  const Slots& slots_;
  const std::string json_;
  const milliseconds pause_;
  std::mt19937 random_;
  std::shared_ptr<Replica> replica_;  // replica of the last call
  std::vector<Event> events_;
  std::map<std::string, int64_t> seen_;  // the newest version of each name that the client knows
  int puts_ = 0;
  int lost_ = 0;
  int refused_ = 0;
  int calibrated_ = 0;
};

enum class Place { kSqlite, kPostgres };

class HistoryTest : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    Arm("");
    store_ = folder_.path() + "/profiles.db";
    if (GetParam() == Place::kSqlite) return;
    database_ = PostgresServer::Get();
    if (database_ == nullptr) GTEST_SKIP() << PostgresServer::MissingReason();
    relay_ = std::make_unique<PostgresRelay>(database_->socket_folder());
    store_ = relay_->Through(database_->NewDatabase());
  }

  // Makes one more fault; the kinds take turns.
  void Strike(int number, Slots& slots) {
    const auto kill = [&] { slots[static_cast<size_t>(number / 5) % kReplicas]->KillAndStart(); };
    switch (number % 5) {
      case 0:
        return kill();
      case 1:
        return Arm("store.before_commit=fail*1@1 store.read=fail*2");
      case 2:
        if (relay_ == nullptr) return Arm("store.after_commit=fail*1@1");
        return relay_->Arm(number % 2 == 0 ? PostgresRelay::kCutBefore : PostgresRelay::kCutAfter);
      case 3:
        if (database_ == nullptr) return kill();
        database_->Kill();
        std::this_thread::sleep_for(milliseconds(100));
        return database_->Start();
      default:
        // Each server that commits dies before it answers.
        Arm("store.after_commit=kill");
        std::this_thread::sleep_for(milliseconds(200));
        Arm("");
        for (const auto& slot : slots) slot->KillAndStart();
    }
  }
  // Arms rules in all servers, now and when they start (kernels/system/failpoint.h). A build
  // without failpoints has only the other faults.
  void Arm(const std::string& rules) {
    std::filesystem::rename(folder_.Write("rules", rules), folder_.path() + "/failpoints");
  }

  const TinyModel model_;
  const TempFolder folder_{FastParent()};
  const Environment failpoints_{"ETA_FAILPOINTS", folder_.path() + "/failpoints"};
  std::string store_;
  PostgresServer* database_ = nullptr;    // null: a file
  std::unique_ptr<PostgresRelay> relay_;  // in front of the database
};
INSTANTIATE_TEST_SUITE_P(Stores, HistoryTest, ::testing::Values(Place::kSqlite, Place::kPostgres),
                         [](const auto& place) {
                           return place.param == Place::kSqlite ? "Sqlite" : "Postgres";
                         });

TEST_P(HistoryTest, WhatClientsSeeUnderFaultsKeepsThePromises) {
  Slots slots;
  for (auto& slot : slots) slot = std::make_unique<Slot>(model_.path(), store_);
  ASSERT_FALSE(HasFailure());
  ASSERT_TRUE(slots[0]->get()->Calibrate(SmallCalibration("pattern")).has_value());
  const std::string json = slots[0]->get()->Export("pattern");

  const int operations = Rounds(500, 10'000) / kClients;
  const milliseconds pause(30);  // about 200 operations a second
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::thread> threads;
  std::atomic<int> working = kClients;
  const auto begin = steady_clock::now();
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(i, slots, json, pause));
    threads.emplace_back([&, client = clients.back().get()] {
      client->Run(operations);
      --working;
    });
  }
  int faults = 0;
  for (std::mt19937 random(1); working > 0; ++faults) {
    std::this_thread::sleep_for(milliseconds(Rounds(100, 400) + random() % 400));
    Strike(faults, slots);
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = steady_clock::now() - begin;

  std::vector<Event> events;
  int lost = 0, refused = 0, calibrated = 0;
  for (const auto& client : clients) {
    events.insert(events.end(), client->events().begin(), client->events().end());
    lost += client->lost();
    refused += client->refused();
    calibrated += client->calibrated();
  }
  std::printf(
      "%zu operations in %.1f s beside %d faults; %d writes without an answer, %d calls refused, %d"
      " calibrations\n",
      events.size(), seconds.count(), faults, lost, refused, calibrated);
  EXPECT_GT(faults, 1);
  EXPECT_GE(events.size(), static_cast<size_t>(operations * kClients));
  if (LongRun()) {
    EXPECT_GT(lost, 0);
    EXPECT_GT(calibrated, 0);
  }
  const absl::Status checked = CheckHistory(events);
  EXPECT_TRUE(checked.ok()) << checked.message();
}

}  // namespace
}  // namespace eta::testing
