// A client that speaks HTTP/2 frame by frame, for what no gRPC library would send and to see how an
// answer is framed. Header values are sent as literals; of answers only such are read.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace eta::testing {

class Http2Peer {
 public:
  struct Frame {
    uint8_t type;
    uint8_t flags;
    uint32_t stream;
    std::string payload;
  };
  static constexpr uint8_t kData = 0, kHeaders = 1, kResetStream = 3, kGoAway = 7;
  static constexpr uint8_t kEndStream = 1;

  // Settings with which the server may send nothing of a call's messages until Widen.
  static std::string NoWindow();

  // Connects to host:port (IPv4) and exchanges settings. connected() is false if it could not.
  explicit Http2Peer(const std::string& address, const std::string& settings = "");
  ~Http2Peer();
  bool connected() const { return fd_ >= 0; }

  // The headers of a gRPC call on `stream` (odd, ascending), plus `more`.
  void Call(uint32_t stream, const std::string& path,
            const std::vector<std::pair<std::string, std::string>>& more = {});
  // `message` with gRPC's five-byte prefix; more than one in a DATA frame if it holds several.
  void Message(uint32_t stream, const std::string& message, bool end_stream,
               bool compressed = false);
  void Send(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload);

  // Lets the server send that many bytes more on `stream`, beyond the first 65,535 (with
  // NoWindow(): beyond none).
  void Widen(uint32_t stream, uint32_t bytes);

  // HEADERS, DATA and RST_STREAM frames of `stream` up to its end; what came if that takes over 10
  // s or the connection closes. Pings and settings are answered on the way.
  std::vector<Frame> ReadStream(uint32_t stream);

  // The value of a header of an answer, if it is a plain literal, as gRPC sends a name's first on a
  // connection; else empty.
  static std::string Header(const std::vector<Frame>& frames, const std::string& name);

  // Drops the connection with a reset, as a crashed client's host would.
  void Vanish();

 private:
  bool ReadFrame(Frame& frame);

  int fd_ = -1;
};

}  // namespace eta::testing
