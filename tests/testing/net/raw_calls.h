// Several calls on one TLS connection, with hand-made frames: for headers and messages that no
// client library sends, and to see what happens to the calls beside them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "eta/v1/generate.pb.h"
#include "gtest/gtest.h"
#include "tests/testing/net/hostile_connection.h"
#include "tests/testing/net/http2_frames.h"

namespace eta::testing {

class RawCalls {
 public:
  explicit RawCalls(const std::string& address)
      : connection_({.address = address, .tls = true}, tally_) {
    connection_.on_frame = [this](const http2::FrameView& frame) {
      if (frame.type == http2::kData) data_[frame.stream].append(frame.payload);
      if (frame.type == http2::kHeaders) headers_[frame.stream].append(frame.payload);
      const bool end = (frame.type == http2::kData || frame.type == http2::kHeaders) &&
                       (frame.flags & http2::kEndStream) != 0;
      if (end || frame.type == http2::kResetStream) ended_.insert(frame.stream);
    };
  }

  // Sends HEADERS with `more`, and DATA.
  void Send(uint32_t stream, const std::string& method, const std::string& more,
            const std::string& data, bool end = true) {
    connection_.Send(http2::Frame(http2::kHeaders, http2::kEndHeaders, stream,
                                  http2::CallHeaders(method) + more) +
                     http2::Frame(http2::kData, end ? http2::kEndStream : 0, stream, data));
  }
  // Reads what arrives until the condition holds. False after a minute.
  bool Becomes(const std::function<bool()>& condition) {
    for (int i = 0; i < 6000 && !condition(); ++i) {
      connection_.Drain();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  }
  bool Ended(uint32_t stream) const { return ended_.contains(stream); }
  size_t NumEnded() const { return ended_.size(); }
  // The number of the stream's status, if it has one, in nginx's form: the name in HPACK's Huffman
  // code, the value without.
  std::string Status(uint32_t stream) {
    const std::string name = "\x9a\xca\xc8\xb2\x12\x34\xda\x8f";
    const std::string& headers = headers_[stream];
    const size_t at = headers.find(name);
    if (at == std::string::npos || at + name.size() >= headers.size()) return "";
    return headers.substr(at + name.size() + 1, static_cast<uint8_t>(headers[at + name.size()]));
  }
  // The messages of an answer of Generate.
  std::vector<v1::GenerateResponse> Answers(uint32_t stream) {
    std::vector<v1::GenerateResponse> answers;
    const std::string& data = data_[stream];
    for (size_t at = 0; at + 5 <= data.size();) {
      size_t size = 0;
      for (size_t i = 1; i < 5; ++i) size = (size << 8) | static_cast<uint8_t>(data[at + i]);
      if (at + 5 + size > data.size()) break;
      EXPECT_TRUE(answers.emplace_back().ParseFromString(data.substr(at + 5, size)));
      at += 5 + size;
    }
    return answers;
  }
  bool ThrownOut() const { return tally_.thrown_out > 0; }

 private:
  AttackTally tally_;
  HostileConnection connection_;
  std::map<uint32_t, std::string> data_, headers_;
  std::set<uint32_t> ended_;
};

}  // namespace eta::testing
