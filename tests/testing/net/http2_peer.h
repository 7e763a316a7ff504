// A client that speaks HTTP/2 frame by frame: to send what no gRPC library sends, and to see how an
// answer is framed. It sends header values as literals, and reads only literals in answers.
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

  // Settings with which the server may send none of a call's messages until Widen.
  static std::string NoWindow();

  // Connects to host:port (IPv4) and exchanges settings. connected() is false if that failed.
  explicit Http2Peer(const std::string& address, const std::string& settings = "");
  ~Http2Peer();
  bool connected() const { return fd_ >= 0; }

  // Sends the headers of a gRPC call on `stream` (odd, ascending), plus `more`.
  void Call(uint32_t stream, const std::string& path,
            const std::vector<std::pair<std::string, std::string>>& more = {});
  // Sends `message` with gRPC's five-byte prefix, or several messages in one DATA frame.
  void Message(uint32_t stream, const std::string& message, bool end_stream,
               bool compressed = false);
  void Send(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload);

  // Lets the server send that many more bytes on `stream`, beyond the first 65,535 (with
  // NoWindow(): beyond 0).
  void Widen(uint32_t stream, uint32_t bytes);

  // Returns HEADERS, DATA and RST_STREAM frames of `stream` up to its end, or those that came
  // within 10 s or until the connection closed. Answers pings and settings on the way.
  std::vector<Frame> ReadStream(uint32_t stream);

  // The value of a header in an answer if it is a plain literal, as gRPC sends a name's first value
  // on a connection; else empty.
  static std::string Header(const std::vector<Frame>& frames, const std::string& name);

  // Drops the connection with a reset, like the host of a crashed client.
  void Vanish();

 private:
  bool ReadFrame(Frame& frame);

  int fd_ = -1;
};

}  // namespace eta::testing
