// One connection of a hostile peer, over TLS or plaintext: hand-made HTTP/2 frames, since no client
// library sends them. It counts what it sent and whether it was thrown out, so that a test can tell
// an attack from a connection that never was. Single-threaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/base/files/descriptor.h"
#include "tests/testing/net/http2_frames.h"

namespace eta::testing {

struct HostileTarget {
  std::string address;  // host:port (IPv4) or unix:path
  bool tls = false;     // any certificate is accepted
};

// The actions of an attack's connections, and how they ended. Thread-safe.
struct AttackTally {
  std::atomic<int64_t> connections = 0;  // connections made; with TLS, after the handshake
  std::atomic<int64_t> frames = 0;       // frames sent whole
  std::atomic<int64_t> thrown_out = 0;   // connections that the other end closed or sent GOAWAY
};

class HostileConnection {
 public:
  // Connects and sends the preface, with `settings` as the payload of its SETTINGS. On this host it
  // connects from 127.0.0.66, so that limits by address tell it from honest peers.
  HostileConnection(const HostileTarget& target, AttackTally& tally,
                    const std::string& settings = "");
  ~HostileConnection();
  HostileConnection(const HostileConnection&) = delete;
  HostileConnection& operator=(const HostileConnection&) = delete;

  bool open() const { return socket_.valid(); }
  // False, and the connection is closed, once the other end has closed or has read nothing for 100
  // ms: an end that stops reading has defended itself.
  bool Send(const std::string& bytes);
  // Reads what has arrived and answers nothing.
  void Drain();
  // The bytes of DATA that the other end accepts on `stream` now.
  int64_t Room(uint32_t stream) const;

  // If set, it gets every whole frame that arrives.
  std::function<void(const http2::FrameView& frame)> on_frame;

 private:
  class Tls;

  bool Connect(const HostileTarget& target);
  bool ShakeHands();
  bool SendRaw(const std::string& bytes);
  // Returns the bytes that have arrived; empty if there are none now or will be none.
  std::string ReceiveRaw();
  void ThrownOut();
  void Came(const http2::FrameView& frame);

  AttackTally& tally_;
  Descriptor socket_;
  std::unique_ptr<Tls> tls_;
  http2::FrameReader sent_, received_;
  bool thrown_out_ = false;
  // Flow control of DATA.
  int64_t stream_window_ = 65'535;  // the initial window of a stream
  int64_t connection_window_ = 65'535;
  std::map<uint32_t, int64_t> granted_, spent_;  // by stream
};

}  // namespace eta::testing
