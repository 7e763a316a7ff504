#include "tests/testing/net/hostile_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "service/identity/openssl_owned.h"

namespace eta::testing {
namespace {

using namespace http2;  // NOLINT(google-build-using-namespace)
using std::chrono::steady_clock;

constexpr std::chrono::seconds kHandshakePatience{2};
constexpr uint16_t kInitialWindowSize = 4;  // the identifier of a setting

uint32_t ReadBigEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = (value << 8) | static_cast<uint8_t>(byte);
  return value;
}

bool ConnectTcp(int socket, const std::string& target) {
  const size_t colon = target.rfind(':');
  sockaddr_in to{}, from{};
  to.sin_family = from.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(target.c_str() + colon + 1)));
  inet_pton(AF_INET, target.substr(0, colon).c_str(), &to.sin_addr);
  from.sin_addr.s_addr = htonl(0x7f000042);
  bind(socket, reinterpret_cast<const sockaddr*>(&from), sizeof(from));
  return connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

bool ConnectUnix(int socket, const std::string& path) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  path.copy(to.sun_path, sizeof(to.sun_path) - 1);
  return connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

}  // namespace

// TLS over memory buffers, so that no call of it waits for the network.
class HostileConnection::Tls {
 public:
  Tls() : ssl_(SSL_new(Context())) {
    SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(ssl_.get());
  }

  // True once the handshake is complete.
  bool Advance() { return SSL_do_handshake(ssl_.get()) == 1; }
  void Take(const std::string& raw) {
    BIO_write(SSL_get_rbio(ssl_.get()), raw.data(), static_cast<int>(raw.size()));
  }
  // Returns the bytes that are to be sent raw.
  std::string Give() {
    std::string raw(BIO_ctrl_pending(SSL_get_wbio(ssl_.get())), '\0');
    if (!raw.empty()) BIO_read(SSL_get_wbio(ssl_.get()), raw.data(), static_cast<int>(raw.size()));
    return raw;
  }
  std::string Seal(const std::string& plain) {
    if (!plain.empty()) SSL_write(ssl_.get(), plain.data(), static_cast<int>(plain.size()));
    return Give();
  }
  std::string Open(const std::string& raw) {
    Take(raw);
    std::string plain;
    char bytes[16384];
    for (int count = 1; count > 0; plain.append(bytes, static_cast<size_t>(std::max(count, 0)))) {
      count = SSL_read(ssl_.get(), bytes, sizeof(bytes));
    }
    return plain;
  }

 private:
  static SSL_CTX* Context() {
    static const Owned<SSL_CTX, SSL_CTX_free> context = [] {
      Owned<SSL_CTX, SSL_CTX_free> made(SSL_CTX_new(TLS_client_method()));
      SSL_CTX_set_alpn_protos(made.get(), reinterpret_cast<const unsigned char*>("\x02h2"), 3);
      return made;
    }();
    return context.get();
  }

  const Owned<SSL, SSL_free> ssl_;
};

HostileConnection::HostileConnection(const HostileTarget& target, AttackTally& tally,
                                     const std::string& settings)
    : tally_(tally) {
  if (target.tls) tls_ = std::make_unique<Tls>();
  if (!Connect(target) || !(tls_ == nullptr || ShakeHands())) {
    socket_.Reset();
    return;
  }
  ++tally_.connections;
  const std::string preface(kPreface);
  if (SendRaw(tls_ ? tls_->Seal(preface) : preface)) Send(Frame(kSettings, 0, 0, settings));
}

HostileConnection::~HostileConnection() = default;

bool HostileConnection::Connect(const HostileTarget& target) {
  const bool is_unix = target.address.rfind("unix:", 0) == 0;
  socket_.Reset(socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{.tv_sec = 0, .tv_usec = 100'000};
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  return is_unix ? ConnectUnix(socket_.get(), target.address.substr(5))
                 : ConnectTcp(socket_.get(), target.address);
}

bool HostileConnection::ShakeHands() {
  const auto deadline = steady_clock::now() + kHandshakePatience;
  while (!tls_->Advance()) {
    if (!SendRaw(tls_->Give()) || steady_clock::now() >= deadline) return false;
    pollfd readable{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    poll(&readable, 1, 100);
    tls_->Take(ReceiveRaw());
    if (!open()) return false;
  }
  return SendRaw(tls_->Give());
}

bool HostileConnection::SendRaw(const std::string& bytes) {
  for (size_t sent = 0; open() && sent < bytes.size();) {
    const ssize_t count =
        send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      socket_.Reset();
    } else {
      ThrownOut();
    }
  }
  return open();
}

bool HostileConnection::Send(const std::string& bytes) {
  if (!open() || !SendRaw(tls_ ? tls_->Seal(bytes) : bytes)) return false;
  sent_.Feed(bytes, [this](const FrameView& frame) {
    ++tally_.frames;
    if (frame.type != kData) return;
    connection_window_ -= static_cast<int64_t>(frame.payload.size());
    spent_[frame.stream] += static_cast<int64_t>(frame.payload.size());
  });
  Drain();
  return open();
}

std::string HostileConnection::ReceiveRaw() {
  std::string bytes(16384, '\0');
  const ssize_t count = open() ? recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) : -1;
  if (count == 0 || (count < 0 && open() && errno != EAGAIN)) ThrownOut();
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return bytes;
}

void HostileConnection::Drain() {
  for (std::string bytes = ReceiveRaw(); !bytes.empty(); bytes = ReceiveRaw()) {
    received_.Feed(tls_ ? tls_->Open(bytes) : bytes,
                   [this](const FrameView& frame) { Came(frame); });
  }
}

void HostileConnection::Came(const FrameView& frame) {
  if (frame.type == kGoAway && !thrown_out_) {
    thrown_out_ = true;
    ++tally_.thrown_out;
  }
  if (frame.type == kWindowUpdate && frame.payload.size() == 4) {
    (frame.stream == 0 ? connection_window_ : granted_[frame.stream]) +=
        ReadBigEndian(frame.payload);
  }
  for (size_t at = 0; frame.type == kSettings && at + 6 <= frame.payload.size(); at += 6) {
    if (ReadBigEndian(frame.payload.substr(at, 2)) != kInitialWindowSize) continue;
    stream_window_ = ReadBigEndian(frame.payload.substr(at + 2, 4));
  }
  if (on_frame) on_frame(frame);
}

int64_t HostileConnection::Room(uint32_t stream) const {
  const auto of = [stream](const std::map<uint32_t, int64_t>& streams) {
    const auto found = streams.find(stream);
    return found == streams.end() ? 0 : found->second;
  };
  return std::min(connection_window_, stream_window_ + of(granted_) - of(spent_));
}

void HostileConnection::ThrownOut() {
  socket_.Reset();
  if (!thrown_out_) ++tally_.thrown_out;
  thrown_out_ = true;
}

}  // namespace eta::testing
