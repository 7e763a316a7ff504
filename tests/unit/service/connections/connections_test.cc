// Listening, the count of open connections, and accepting when file descriptors run out.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "gmock/gmock.h"
#include "service/connections/acceptor.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/net/client_socket.h"
#include "tests/testing/process/sanitized.h"

namespace eta {
namespace {

using testing::NewSocket;
using Room = ConnectionTable::Room;

sockaddr_storage Peer(const std::string& host) {
  sockaddr_storage peer{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(peer);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(peer);
  peer.ss_family = host.find(':') == std::string::npos ? AF_INET : AF_INET6;
  void* const to = peer.ss_family == AF_INET ? static_cast<void*>(&v4.sin_addr) : &v6.sin6_addr;
  EXPECT_EQ(inet_pton(peer.ss_family, host.c_str(), to), 1) << host;
  return peer;
}

// A connection to host:port or unix:path; invalid if nobody listens.
Descriptor Connect(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) {
    Descriptor client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    address.copy(to.sun_path, sizeof(to.sun_path) - 1, 5);
    if (connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) client.Reset();
    return client;
  }
  const size_t colon = address.rfind(':');
  sockaddr_storage to = Peer("127.0.0.1");
  reinterpret_cast<sockaddr_in&>(to).sin_port =
      htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  Descriptor client = NewSocket();
  if (connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(sockaddr_in)) != 0) {
    client.Reset();
  }
  return client;
}

// Whether the other end has closed; waits for it or for a byte.
bool Closed(const Descriptor& client) {
  char byte;
  const ssize_t got = recv(client.get(), &byte, 1, 0);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

TEST(PeerKeys, AreAddressesAndNetworks) {
  EXPECT_EQ(PeerKey(Peer("10.0.0.1")), PeerKey(Peer("10.0.0.1")));
  EXPECT_NE(PeerKey(Peer("10.0.0.1")), PeerKey(Peer("10.0.0.2")));
  EXPECT_EQ(PeerKey(Peer("::ffff:10.0.0.1")), PeerKey(Peer("10.0.0.1")));
  EXPECT_EQ(PeerKey(Peer("2001:db8::1")), PeerKey(Peer("2001:db8::ffff:1")));
  EXPECT_NE(PeerKey(Peer("2001:db8::1")), PeerKey(Peer("2001:db8:0:1::1")));
  sockaddr_storage local{};
  local.ss_family = AF_UNIX;
  EXPECT_EQ(PeerKey(local), "");
}

TEST(ConnectionTableTest, HasRoomAgainOnceAConnectionIsClosed) {
  ConnectionTable table(2, 0);
  std::vector<Descriptor> open;
  for (int i = 0; i < 3; ++i) open.push_back(NewSocket());
  EXPECT_EQ(table.Add(open[0].get(), "a"), Room::kYes);
  EXPECT_EQ(table.Add(open[1].get(), "a"), Room::kYes);
  EXPECT_EQ(table.Add(open[2].get(), "a"), Room::kFull);
  EXPECT_EQ(table.Open(), 2);
  open[0].Reset();
  EXPECT_EQ(table.Open(), 1);
  EXPECT_EQ(table.Add(open[2].get(), "a"), Room::kYes);
}

TEST(ConnectionTableTest, ADescriptorThatIsSomethingElseNowIsNoConnection) {
  ConnectionTable table(8, 0);
  Descriptor first = NewSocket();
  const int number = first.get();
  EXPECT_EQ(table.Add(number, "a"), Room::kYes);
  first.Reset();
  const Descriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(file.get(), number) << "the lowest that is free";
  EXPECT_EQ(table.Open(), 0);
  // Nor is another connection on the same number two.
  const Descriptor second = NewSocket();
  EXPECT_EQ(table.Add(second.get(), "a"), Room::kYes);
  EXPECT_EQ(table.Add(second.get(), "b"), Room::kYes);
  EXPECT_EQ(table.Open(), 1);
}

// A table and the connections in it, which stay open.
class FilledTable {
 public:
  FilledTable(int max, int max_per_peer) : table_(max, max_per_peer) {}

  Room Add(const std::string& peer) {
    open_.push_back(NewSocket());
    return table_.Add(open_.back().get(), peer);
  }

 private:
  ConnectionTable table_;
  std::vector<Descriptor> open_;
};

TEST(ConnectionTableTest, PeersHaveALimitOfTheirOwnButNotThoseOfAUnixSocket) {
  FilledTable table(100, 2);
  EXPECT_EQ(table.Add("a"), Room::kYes);
  EXPECT_EQ(table.Add("a"), Room::kYes);
  EXPECT_EQ(table.Add("a"), Room::kPeerFull);
  EXPECT_EQ(table.Add("b"), Room::kYes);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(table.Add(""), Room::kYes);
}

TEST(ConnectionTableTest, WhoHasNoConnectionGetsOneWhileOthersFillTheServer) {
  FilledTable table(2, 0);
  EXPECT_EQ(table.Add("a"), Room::kYes);
  EXPECT_EQ(table.Add("a"), Room::kYes);
  EXPECT_EQ(table.Add("a"), Room::kFull);
  for (int i = 0; i < ConnectionTable::kSpare; ++i)
    EXPECT_EQ(table.Add("b" + std::to_string(i)), Room::kYes);
  EXPECT_EQ(table.Add("c"), Room::kFull);
}

TEST(ListenSocketsTest, TakeAFreePortOnEveryFamily) {
  for (const char* address : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::]:0"}) {
    const auto listen = ListenSockets::Open({.address = address}).value();
    EXPECT_TRUE(Connect(listen.address()).valid()) << listen.address();
    EXPECT_EQ(listen.address().rfind(std::string(address, std::string(address).size() - 1), 0), 0u);
    // A port in use is an error, not a share of its connections.
    const auto second = ListenSockets::Open({.address = listen.address()});
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << address;
  }
}

TEST(ListenSocketsTest, RefuseWhatIsNoAddressOfThisHost) {
  EXPECT_EQ(ListenSockets::Open({.address = "192.0.2.1:0"}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(ListenSockets::Open({.address = "unix:" + std::string(200, 'x')}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ListenSocketsTest, AUnixSocketIsItsOwnersAndIsRemoved) {
  const TempFolder folder;
  const std::string path = folder.path() + "/socket";
  const mode_t umask_before = umask(0077);
  for (const mode_t mode : {0600, 0660, 0666}) {
    auto listen = ListenSockets::Open({.address = "unix:" + path, .file_mode = mode}).value();
    struct stat file {};
    ASSERT_EQ(stat(path.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, mode);
    EXPECT_TRUE(Connect("unix:" + path).valid());
    EXPECT_FALSE(ListenSockets::Open({.address = "unix:" + path}).ok()) << "it is in use";
    listen.Close();
    EXPECT_NE(stat(path.c_str(), &file), 0);
  }
  umask(umask_before);
}

TEST(ListenSocketsTest, AUnixSocketThatWasLeftBehindIsReplacedAFileIsNot) {
  const TempFolder folder;
  const std::string path = folder.path() + "/socket";
  {
    const Descriptor crashed(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    path.copy(at.sun_path, sizeof(at.sun_path) - 1);
    ASSERT_EQ(bind(crashed.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  }
  EXPECT_TRUE(ListenSockets::Open({.address = "unix://" + path}).ok());
  const std::string file = folder.path() + "/file";
  const Descriptor made(open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_FALSE(ListenSockets::Open({.address = "unix:" + file}).ok());
  struct stat still {};
  EXPECT_EQ(stat(file.c_str(), &still), 0);
}

// An acceptor whose connections land here.
class AcceptorTest : public ::testing::Test {
 protected:
  std::unique_ptr<Acceptor> Start(int max, int max_per_peer = 0) {
    auto acceptor =
        std::make_unique<Acceptor>(Acceptor::Options{.listen = {.address = "127.0.0.1:0"},
                                                     .max_connections = max,
                                                     .max_connections_per_peer = max_per_peer},
                                   Log::Nowhere());
    EXPECT_TRUE(acceptor->Listen().ok());
    acceptor->Begin([this](int fd) {
      const std::lock_guard lock(mutex_);
      served_.emplace_back(fd);
      changed_.notify_all();
    });
    return acceptor;
  }
  void AwaitServed(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return served_.size() >= count; });
  }
  void CloseServed() {
    const std::lock_guard lock(mutex_);
    served_.clear();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Descriptor> served_;  // guarded by mutex_
};

TEST_F(AcceptorTest, ServesUpToItsLimitClosesTheRestAndServesAgain) {
  const auto acceptor = Start(3);
  std::vector<Descriptor> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Connect(acceptor->address()));
  AwaitServed(3);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Closed(Connect(acceptor->address())));
  ConnectionUsage usage = acceptor->Usage();
  EXPECT_EQ(usage.open, 3);
  EXPECT_EQ(usage.max, 3);
  EXPECT_EQ(usage.accepted, 3);
  EXPECT_EQ(usage.refused_full, 4);
  CloseServed();
  EXPECT_EQ(acceptor->Usage().open, 0);
  clients.push_back(Connect(acceptor->address()));
  AwaitServed(1);
  EXPECT_EQ(acceptor->Usage().open, 1);
}

TEST_F(AcceptorTest, APeerHasItsOwnLimit) {
  const auto acceptor = Start(100, 2);
  std::vector<Descriptor> clients;
  for (int i = 0; i < 2; ++i) clients.push_back(Connect(acceptor->address()));
  AwaitServed(2);
  EXPECT_TRUE(Closed(Connect(acceptor->address())));
  EXPECT_EQ(acceptor->Usage().refused_peer, 1);
}

// bad input: Connections | thousands, no file descriptors left | closed by the acceptor, which
//   accepts again within a second of release |
//   ConnectionsProcessTest.FiveTimesMoreConnectionsThanFilesAndItAcceptsAgain
TEST_F(AcceptorTest, WithNoDescriptorLeftItRefusesAndServesOnceTheyAreBack) {
  if (testing::kAddressSanitizer) {
    GTEST_SKIP() << "UBSan takes a process without a file descriptor for one with bad pointers";
  }
  const auto acceptor = Start(100);
  std::vector<Descriptor> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(NewSocket());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(clients.back().get()) + 1;
  setrlimit(RLIMIT_NOFILE, &none);
  std::vector<Descriptor> rest;  // below the limit, so that none at all is free
  for (int fd = dup(clients[0].get()); fd >= 0; fd = dup(clients[0].get())) rest.emplace_back(fd);

  sockaddr_storage to = Peer("127.0.0.1");
  const std::string& address = acceptor->address();
  reinterpret_cast<sockaddr_in&>(to).sin_port =
      htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  for (const Descriptor& client : clients) {
    ASSERT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(sockaddr_in)), 0);
    EXPECT_TRUE(Closed(client));
  }
  EXPECT_EQ(acceptor->Usage().refused_no_files, 3);
  EXPECT_GE(acceptor->Usage().accept_errors, 3);
  rest.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  const Descriptor again = Connect(address);
  AwaitServed(1);
  EXPECT_EQ(acceptor->Usage().accepted, 1);
}

TEST(AcceptorOptionsTest, ALimitThatTheProcessCannotHoldIsRefused) {
  Acceptor acceptor({.listen = {.address = "127.0.0.1:0"}, .max_connections = 1 << 30},
                    Log::Nowhere());
  const absl::Status status = acceptor.Listen();
  EXPECT_THAT(status, FailsSaying(absl::StatusCode::kInvalidArgument, "--max_connections"));
}

}  // namespace
}  // namespace eta
