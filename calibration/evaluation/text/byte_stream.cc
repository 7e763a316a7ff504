#include "calibration/evaluation/text/byte_stream.h"

#include <lzma.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(std::ifstream file) : file_(std::move(file)) {}

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    file_.read(out, static_cast<std::streamsize>(size));
    if (file_.bad()) return absl::InvalidArgumentError("text: the file cannot be read");
    return static_cast<size_t>(file_.gcount());
  }

 private:
  std::ifstream file_;
};

class XzStream : public ByteStream {
 public:
  explicit XzStream(std::unique_ptr<ByteStream> packed)
      : packed_(std::move(packed)), input_(size_t{1} << 16) {}
  ~XzStream() override { lzma_end(&stream_); }

  bool Start(uint64_t max_decoder_bytes) {
    return lzma_stream_decoder(&stream_, max_decoder_bytes, LZMA_CONCATENATED) == LZMA_OK;
  }

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    stream_.next_out = reinterpret_cast<uint8_t*>(out);
    stream_.avail_out = size;
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0 && !input_ended_) {
        ASSIGN_OR_RETURN(const size_t got, packed_->Read(input_.data(), input_.size()));
        stream_.next_in = reinterpret_cast<const uint8_t*>(input_.data());
        stream_.avail_in = got;
        input_ended_ = got == 0;
      }
      const lzma_ret result = lzma_code(&stream_, input_ended_ ? LZMA_FINISH : LZMA_RUN);
      if (result == LZMA_STREAM_END) {
        ended_ = true;
      } else if (result == LZMA_MEMLIMIT_ERROR) {
        return absl::InvalidArgumentError("text: unpacking the .xz takes more memory than allowed");
      } else if (result != LZMA_OK) {
        return absl::InvalidArgumentError("text: the .xz is damaged or cut short");
      }
    }
    return size - stream_.avail_out;
  }

 private:
  std::unique_ptr<ByteStream> packed_;
  std::vector<char> input_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool input_ended_ = false;
  bool ended_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> ByteStream::Open(const std::string& path,
                                                             uint64_t max_decoder_bytes) {
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) file.open(path, std::ios::binary);
  if (!file.is_open()) return absl::NotFoundError("text: the file cannot be opened: " + path);
  auto plain = std::make_unique<PlainStream>(std::move(file));
  if (!path.ends_with(".xz")) return plain;
  auto unpacked = std::make_unique<XzStream>(std::move(plain));
  if (!unpacked->Start(max_decoder_bytes)) {
    return absl::ResourceExhaustedError("text: no memory to unpack the .xz");
  }
  return unpacked;
}

}  // namespace eta
