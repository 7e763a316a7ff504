// Frames of HTTP/2 (RFC 9113) and header literals of HPACK (RFC 7541), as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace eta::testing::http2 {

inline constexpr uint8_t kData = 0, kHeaders = 1, kPriority = 2, kResetStream = 3, kSettings = 4,
                         kPing = 6, kGoAway = 7, kWindowUpdate = 8, kContinuation = 9;
inline constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;  // flags
inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>((value >> shift) & 0xff);
  return bytes;
}

inline std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame = BigEndian(static_cast<uint32_t>(payload.size())).substr(1);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  return (frame += BigEndian(stream)).append(payload);
}

struct FrameView {
  uint8_t type;
  uint8_t flags;
  uint32_t stream;
  std::string_view payload;
};

// Splits a stream of bytes into frames.
class FrameReader {
 public:
  // Calls `visit` with each frame that is complete now.
  template <typename Visit>
  void Feed(std::string_view bytes, const Visit& visit) {
    constexpr size_t kHead = 9;
    waiting_.append(bytes);
    size_t at = 0;
    while (at + kHead <= waiting_.size()) {
      const auto byte = [this, at](size_t i) { return static_cast<uint8_t>(waiting_[at + i]); };
      const size_t length = (size_t{byte(0)} << 16) | (size_t{byte(1)} << 8) | byte(2);
      if (at + kHead + length > waiting_.size()) break;
      const uint32_t stream = (uint32_t{byte(5) & 0x7fu} << 24) | (uint32_t{byte(6)} << 16) |
                              (uint32_t{byte(7)} << 8) | byte(8);
      visit(FrameView{byte(3), byte(4), stream,
                      std::string_view(waiting_).substr(at + kHead, length)});
      at += kHead + length;
    }
    waiting_.erase(0, at);
  }

 private:
  std::string waiting_;
};

// The length of an HPACK string without Huffman code: an integer with a prefix of 7 bits.
inline std::string StringLength(uint64_t length) {
  if (length < 0x7f) return std::string(1, static_cast<char>(length));
  std::string bytes = "\x7f";
  for (length -= 0x7f; length >= 0x80; length >>= 7) {
    bytes += static_cast<char>(0x80 | (length & 0x7f));
  }
  return bytes += static_cast<char>(length);
}

// A header, literal and not indexed.
inline std::string Literal(std::string_view name, std::string_view value) {
  std::string bytes(1, '\0');
  bytes.append(StringLength(name.size())).append(name);
  return bytes.append(StringLength(value.size())).append(value);
}

// The headers of a gRPC call, without those that a caller may want to add.
inline std::string CallHeaders(std::string_view path, std::string_view scheme = "http") {
  return Literal(":method", "POST") + Literal(":scheme", scheme) + Literal(":path", path) +
         Literal(":authority", "localhost") + Literal("te", "trailers") +
         Literal("content-type", "application/grpc");
}

// A gRPC message: flag, length, bytes.
inline std::string Message(std::string_view message, bool compressed = false) {
  std::string bytes(1, compressed ? '\1' : '\0');
  return bytes.append(BigEndian(static_cast<uint32_t>(message.size()))).append(message);
}

}  // namespace eta::testing::http2
