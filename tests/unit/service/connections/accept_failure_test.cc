// accept4(2) that fails in every way that the acceptor tells apart: whatever it is, the connection
// that waits is served or refused, and so is the next.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "service/connections/acceptor.h"
#include "tests/testing/net/client_socket.h"
#include "tests/testing/process/sanitized.h"

namespace {

std::mutex failures_mutex;
std::deque<int> failures;               // guarded by failures_mutex
std::function<void()> at_last_failure;  // likewise

void FailAccept(const std::deque<int>& errors, std::function<void()> at_last = nullptr) {
  const std::lock_guard lock(failures_mutex);
  failures = errors;
  at_last_failure = std::move(at_last);
}

bool AllHaveFailed() {
  const std::lock_guard lock(failures_mutex);
  return failures.empty();
}

}  // namespace

// In front of the C library's: fails once with each of `failures` where a connection waits, then is
// the system's.
extern "C" int accept4(int socket, sockaddr* address, socklen_t* length, int flags) {
  {
    const std::lock_guard lock(failures_mutex);
    if (!failures.empty()) {
      const int error = failures.front();
      failures.pop_front();
      if (failures.empty() && at_last_failure) at_last_failure();
      errno = error;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_accept4, socket, address, length, flags));
}

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class AcceptFailureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(acceptor_.Listen().ok());
    acceptor_.Begin([this](int fd) {
      const std::lock_guard lock(mutex_);
      served_.emplace_back(fd);
      changed_.notify_all();
    });
  }
  void TearDown() override {
    FailAccept({});
    acceptor_.Stop();
  }

  Descriptor Connect(Descriptor client = NewSocket()) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string& address = acceptor_.address();
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return client;
  }
  bool AwaitServed(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return served_.size() >= count; });
  }
  // A connection while accept4 fails like this, then another; both are served.
  void ExpectServedAfter(const std::deque<int>& errors) {
    const int64_t before = acceptor_.Usage().accepted;
    FailAccept(errors);
    clients_.push_back(Connect());
    EXPECT_TRUE(AwaitServed(static_cast<size_t>(before) + 1));
    EXPECT_TRUE(AllHaveFailed());
    clients_.push_back(Connect());
    EXPECT_TRUE(AwaitServed(static_cast<size_t>(before) + 2));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Descriptor> served_;  // guarded by mutex_
  std::vector<Descriptor> clients_;
  Acceptor acceptor_{{.listen = {.address = "127.0.0.1:0"}, .max_connections = 100},
                     Log::Nowhere()};
};

TEST_F(AcceptFailureTest, OfOneConnectionOrOfTheSystemIsCountedAndTheNextIsServed) {
  int64_t errors = 0;
  for (const int error : {ECONNABORTED, EPROTO, ENETUNREACH, EPERM, ENOBUFS, ENOMEM}) {
    SCOPED_TRACE(error);
    ExpectServedAfter({error});
    EXPECT_EQ(acceptor_.Usage().accept_errors, ++errors);
  }
  ExpectServedAfter({ECONNABORTED, ENOBUFS, ENOMEM, ECONNABORTED, ENOMEM});
  EXPECT_EQ(acceptor_.Usage().accept_errors, errors += 5);
  ExpectServedAfter({EINTR, EAGAIN, EINTR});
  EXPECT_EQ(acceptor_.Usage().accept_errors, errors) << "those are no errors";
  EXPECT_EQ(acceptor_.Usage().refused_no_files, 0);
}

TEST_F(AcceptFailureTest, ForWantOfMemoryIsTriedAgainAfterAPause) {
  const auto begin = steady_clock::now();
  ExpectServedAfter(std::deque<int>(40, ENOMEM));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(100)) << "a core is not taken by trying";
}

TEST_F(AcceptFailureTest, ForWantOfDescriptorsRefusesAndWithoutTheReserveLetsWait) {
  for (const int error : {EMFILE, ENFILE}) {
    SCOPED_TRACE(error);
    const int64_t refused = acceptor_.Usage().refused_no_files;
    FailAccept({error});
    EXPECT_TRUE(HasEnded(Connect()));
    EXPECT_EQ(acceptor_.Usage().refused_no_files, refused + 1);
    // Another thread was faster than the reserve: the connection waits.
    ExpectServedAfter({error, error});
    EXPECT_EQ(acceptor_.Usage().refused_no_files, refused + 1);
  }
}

// Else the last descriptor would serve one connection, and all after it would wait for its end.
TEST_F(AcceptFailureTest, WhatComesBackFirstIsTheReserve) {
  if (testing::kAddressSanitizer) {
    GTEST_SKIP() << "UBSan takes a process without a file descriptor for one with bad pointers";
  }
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  Descriptor client = NewSocket();
  std::atomic<rlim_t> reserve = 0;
  FailAccept({EMFILE, EMFILE}, [&] {  // the acceptor has just given it away
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(Descriptor(dup(0)).get());
    setrlimit(RLIMIT_NOFILE, &none);
    reserve = none.rlim_cur;
  });
  client = Connect(std::move(client));
  while (acceptor_.Usage().accept_errors < 5) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(acceptor_.Usage().refused_no_files, 0) << "without it nobody can be refused";
  rlimit one = before;
  one.rlim_cur = reserve + 1;
  setrlimit(RLIMIT_NOFILE, &one);
  EXPECT_TRUE(HasEnded(client));
  EXPECT_EQ(acceptor_.Usage().refused_no_files, 1);
  EXPECT_EQ(acceptor_.Usage().accepted, 0);
  setrlimit(RLIMIT_NOFILE, &before);
  clients_.push_back(Connect());
  EXPECT_TRUE(AwaitServed(1));
}

}  // namespace
}  // namespace eta::testing
