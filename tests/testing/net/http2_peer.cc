#include "tests/testing/net/http2_peer.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/testing/net/http2_frames.h"

namespace eta::testing {

using http2::BigEndian;
using http2::kAck;
using http2::kEndHeaders;
using http2::kPing;
using http2::kSettings;
using http2::kWindowUpdate;

std::string Http2Peer::NoWindow() {
  return std::string("\0\4", 2) + BigEndian(0);
}

Http2Peer::Http2Peer(const std::string& address, const std::string& settings) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    close(fd_);
    fd_ = -1;
    return;
  }
  send(fd_, http2::kPreface.data(), http2::kPreface.size(), MSG_NOSIGNAL);
  Send(kSettings, 0, 0, settings);
}

Http2Peer::~Http2Peer() {
  if (fd_ >= 0) close(fd_);
}

void Http2Peer::Send(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  const std::string frame = http2::Frame(type, flags, stream, payload);
  send(fd_, frame.data(), frame.size(), MSG_NOSIGNAL);
}

void Http2Peer::Call(uint32_t stream, const std::string& path,
                     const std::vector<std::pair<std::string, std::string>>& more) {
  std::string headers = http2::CallHeaders(path);
  for (const auto& [name, value] : more) headers += http2::Literal(name, value);
  Send(kHeaders, kEndHeaders, stream, headers);
}

void Http2Peer::Message(uint32_t stream, const std::string& message, bool end_stream,
                        bool compressed) {
  Send(kData, end_stream ? kEndStream : 0, stream, http2::Message(message, compressed));
}

void Http2Peer::Widen(uint32_t stream, uint32_t bytes) {
  Send(kWindowUpdate, 0, 0, BigEndian(bytes));
  Send(kWindowUpdate, 0, stream, BigEndian(bytes));
}

bool Http2Peer::ReadFrame(Frame& frame) {
  uint8_t head[9];
  if (recv(fd_, head, sizeof(head), MSG_WAITALL) != sizeof(head)) return false;
  const size_t length = (size_t{head[0]} << 16) | (size_t{head[1]} << 8) | head[2];
  frame.type = head[3];
  frame.flags = head[4];
  frame.stream = (uint32_t{head[5] & 0x7fu} << 24) | (uint32_t{head[6]} << 16) |
                 (uint32_t{head[7]} << 8) | head[8];
  frame.payload.resize(length);
  return length == 0 ||
         recv(fd_, frame.payload.data(), length, MSG_WAITALL) == static_cast<ssize_t>(length);
}

std::vector<Http2Peer::Frame> Http2Peer::ReadStream(uint32_t stream) {
  std::vector<Frame> frames;
  Frame frame;
  while (ReadFrame(frame)) {
    if (frame.type == kSettings && (frame.flags & kAck) == 0) Send(kSettings, kAck, 0, "");
    if (frame.type == kPing && (frame.flags & kAck) == 0) Send(kPing, kAck, 0, frame.payload);
    if (frame.stream != stream) continue;
    if (frame.type != kData && frame.type != kHeaders && frame.type != kResetStream) continue;
    frames.push_back(frame);
    const bool last = frame.type == kResetStream || (frame.flags & kEndStream) != 0;
    if (last) break;
  }
  return frames;
}

std::string Http2Peer::Header(const std::vector<Frame>& frames, const std::string& name) {
  const std::string key = static_cast<char>(name.size()) + name;
  for (const Frame& frame : frames) {
    const size_t at = frame.type == kHeaders ? frame.payload.find(key) : std::string::npos;
    const size_t length_at = at + key.size();
    if (at == std::string::npos || length_at >= frame.payload.size()) continue;
    const auto length = static_cast<uint8_t>(frame.payload[length_at]);
    if (length < 0x7f) return frame.payload.substr(length_at + 1, length);
  }
  return "";
}

void Http2Peer::Vanish() {
  const linger abort{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
  close(fd_);
  fd_ = -1;
}

}  // namespace eta::testing
