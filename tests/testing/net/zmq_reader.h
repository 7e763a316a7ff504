// A ZeroMQ socket that reads messages of several frames: a subscriber, or whoever asks for a
// replay.
#pragma once

#include <zmq.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace eta::testing {

class ZmqReader {
 public:
  ZmqReader(int type, const std::string& address)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    constexpr int kNow = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &kNow, sizeof(kNow));
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    zmq_connect(socket_, address.c_str());
  }
  ~ZmqReader() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  ZmqReader(const ZmqReader&) = delete;
  ZmqReader& operator=(const ZmqReader&) = delete;

  void Send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      zmq_send(socket_, frames[i].data(), frames[i].size(), more);
    }
  }
  // Whether a message comes within this time.
  bool Await(int milliseconds) {
    zmq_pollitem_t item{.socket = socket_, .fd = -1, .events = ZMQ_POLLIN, .revents = 0};
    return zmq_poll(&item, 1, milliseconds) > 0;
  }
  // Waits for one.
  std::vector<std::string> Receive() {
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      zmq_msg_recv(&message, socket_, 0);
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  void* const context_;
  void* const socket_;
};

// Eight bytes, the most significant first, and back.
inline std::string BigEndian(uint64_t number) {
  std::string bytes(8, '\0');
  for (size_t i = 8; i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}
inline uint64_t FromBigEndian(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

}  // namespace eta::testing
