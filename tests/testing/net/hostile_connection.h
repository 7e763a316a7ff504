// One connection of a hostile peer: HTTP/2 frames made by hand, since no client library sends them,
// over TLS or plaintext. It counts what it sent and whether it was thrown out, so that a test can
// tell an attack from a connection that never was. Of one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/base/descriptor.h"
#include "tests/testing/net/http2_frames.h"

namespace eta::testing {

struct HostileTarget {
  std::string address;  // host:port (IPv4) or unix:path
  bool tls = false;     // whatever certificate it shows
};

// What the connections of an attack did and met. Thread-safe.
struct AttackTally {
  std::atomic<int64_t> connections = 0;  // that were made, with TLS: shaken hands over
  std::atomic<int64_t> frames = 0;       // that were sent whole
  std::atomic<int64_t> thrown_out = 0;   // connections that the other end closed or said GOAWAY to
};

class HostileConnection {
 public:
  // Connects and says the preface, with `settings` as the payload of its SETTINGS. Comes from
  // 127.0.0.66, where the target is of this host, so that limits by address tell it from honest
  // peers.
  HostileConnection(const HostileTarget& target, AttackTally& tally,
                    const std::string& settings = "");
  ~HostileConnection();
  HostileConnection(const HostileConnection&) = delete;
  HostileConnection& operator=(const HostileConnection&) = delete;

  bool open() const { return socket_.valid(); }
  // False, and closed, once the other end has closed or has read nothing for 100 ms: whoever does
  // not read any more has won.
  bool Send(const std::string& bytes);
  // Reads what has come. None of it is answered.
  void Drain();
  // Bytes of DATA that the other end takes on `stream` now.
  int64_t Room(uint32_t stream) const;

  // Every whole frame that comes, if set.
  std::function<void(const http2::FrameView& frame)> on_frame;

 private:
  class Tls;

  bool Connect(const HostileTarget& target);
  bool ShakeHands();
  bool SendRaw(const std::string& bytes);
  // Bytes that have come; empty if there are none now, or none will come any more.
  std::string ReceiveRaw();
  void ThrownOut();
  void Came(const http2::FrameView& frame);

  AttackTally& tally_;
  Descriptor socket_;
  std::unique_ptr<Tls> tls_;
  http2::FrameReader sent_, received_;
  bool thrown_out_ = false;
  // Flow control, of DATA.
  int64_t stream_window_ = 65'535;  // that a stream begins with
  int64_t connection_window_ = 65'535;
  std::map<uint32_t, int64_t> granted_, spent_;  // by stream
};

}  // namespace eta::testing
