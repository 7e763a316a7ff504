#include "service/connections/listen_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace eta {
namespace {

constexpr int kBacklog = 4096;  // the kernel may allow less

absl::Status CannotListen(const std::string& address) {
  return absl::UnavailableError("--listen: cannot listen on " + address +
                                "; is the address of this host, and free?");
}

// Returns 0 or the error.
int Bind(const Descriptor& socket, const sockaddr* address, socklen_t length) {
  if (bind(socket.get(), address, length) != 0) return errno;
  return listen(socket.get(), kBacklog) == 0 ? 0 : errno;
}

Descriptor NewSocket(int family) {
  return Descriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void SetOption(const Descriptor& socket, int level, int name, int value) {
  setsockopt(socket.get(), level, name, &value, sizeof(value));
}

// Accepted connections inherit these options: small messages go out at once, and dead peers are
// found.
void SetTcpOptions(const Descriptor& socket, const ListenSockets::Options& options) {
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  if (options.user_timeout.count() > 0) {
    SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
              static_cast<int>(options.user_timeout.count()));
  }
}

int PortOf(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void SetPort(sockaddr* address, int port) {
  const in_port_t value = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = value;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = value;
  }
}

// True if a process listens at the socket file.
bool Answers(const sockaddr_un& address) {
  const Descriptor probe = NewSocket(AF_UNIX);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  return connect(probe.get(), to, sizeof(address)) == 0 || errno == EAGAIN;
}

}  // namespace

absl::StatusOr<ListenSockets> ListenSockets::Open(const Options& options) {
  ListenSockets listen;
  constexpr char kUnix[] = "unix:";
  absl::Status status;
  if (options.address.rfind(kUnix, 0) == 0) {
    std::string path = options.address.substr(std::strlen(kUnix));
    if (path.rfind("///", 0) == 0) path.erase(0, 2);  // unix:///path, as in a URI
    status = listen.OpenUnix(options, path);
  } else {
    status = listen.OpenTcp(options);
  }
  if (!status.ok()) return status;
  return listen;
}

absl::Status ListenSockets::OpenUnix(const Options& options, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: the path of a Unix socket has 1 to ",
                                                   sizeof(address.sun_path) - 1, " characters"));
  }
  path.copy(address.sun_path, path.size());
  Descriptor socket = NewSocket(AF_UNIX);
  // This comes before bind, which makes the file with this mode, as far as the umask allows. So the
  // file is never more open.
  fchmod(socket.get(), options.file_mode);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  int error = Bind(socket, to, sizeof(address));
  struct stat file {};
  if (error == EADDRINUSE && stat(path.c_str(), &file) == 0 && S_ISSOCK(file.st_mode) &&
      !Answers(address)) {
    unlink(path.c_str());
    error = Bind(socket, to, sizeof(address));
  }
  if (error != 0 || chmod(path.c_str(), options.file_mode) != 0 || stat(path.c_str(), &file) != 0) {
    return CannotListen(options.address);
  }
  sockets_.push_back(std::move(socket));
  address_ = options.address;
  path_ = path;
  inode_ = file.st_ino;
  return absl::OkStatus();
}

absl::Status ListenSockets::OpenTcp(const Options& options) {
  const size_t colon = options.address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(options.address.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError("--listen: must be host:port, [IPv6]:port or unix:path");
  }
  std::string host = options.address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);

  // One socket serves both address families, if the host has both.
  if (host == "0.0.0.0" || host == "::") {
    Descriptor socket = NewSocket(AF_INET6);
    SetTcpOptions(socket, options);
    SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    SetPort(reinterpret_cast<sockaddr*>(&any), port);
    const int error = Bind(socket, reinterpret_cast<const sockaddr*>(&any), sizeof(any));
    if (error == 0) {
      sockets_.push_back(std::move(socket));
    } else if (error == EADDRINUSE || error == EACCES) {
      return CannotListen(options.address);
    } else {
      host = "0.0.0.0";
    }
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (sockets_.empty() && getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) found = nullptr;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, [](addrinfo* first) {
    if (first != nullptr) freeaddrinfo(first);
  });
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (address->ai_family != AF_INET && address->ai_family != AF_INET6) continue;
    Descriptor socket = NewSocket(address->ai_family);
    SetTcpOptions(socket, options);
    if (address->ai_family == AF_INET6) SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    SetPort(address->ai_addr, sockets_.empty() ? port : PortOf(sockets_.front()));
    const int error = Bind(socket, address->ai_addr, address->ai_addrlen);
    // The port of another server is an error, since it would get part of the calls. An address of a
    // family that is off is skipped.
    if (error == EADDRINUSE || error == EACCES) return CannotListen(options.address);
    if (error == 0) sockets_.push_back(std::move(socket));
  }
  if (sockets_.empty()) return CannotListen(options.address);
  address_ = absl::StrCat(options.address.substr(0, colon + 1), PortOf(sockets_.front()));
  return absl::OkStatus();
}

void ListenSockets::Close() {
  sockets_.clear();
  struct stat file {};
  if (!path_.empty() && stat(path_.c_str(), &file) == 0 && file.st_ino == inode_) {
    unlink(path_.c_str());
  }
  path_.clear();
}

}  // namespace eta
