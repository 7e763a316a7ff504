#include "tests/testing/net/generic_call.h"

#include <chrono>
#include <vector>

#include "grpcpp/support/byte_buffer.h"

namespace eta::testing {

GenericCall::GenericCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
    : stub_(channel), method_(method) {
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
}

GenericCall::~GenericCall() {
  context_.TryCancel();
  queue_.Shutdown();
  void* tag;
  bool ok;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool GenericCall::Wait() {
  void* tag;
  bool ok;
  return queue_.Next(&tag, &ok) && ok;
}

void GenericCall::Start() {
  call_ = stub_.PrepareCall(&context_, method_, &queue_);
  call_->StartCall(nullptr);
  Wait();
}

bool GenericCall::Send(const std::string& message) {
  grpc::Slice slice(message);
  call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  return Wait();
}

void GenericCall::SendsDone() {
  call_->WritesDone(nullptr);
  Wait();
}

std::optional<std::string> GenericCall::Read() {
  grpc::ByteBuffer buffer;
  call_->Read(&buffer, nullptr);
  if (!Wait()) return std::nullopt;
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return std::nullopt;
  std::string message;
  for (const grpc::Slice& slice : slices) {
    message.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return message;
}

grpc::Status GenericCall::Finish() {
  grpc::Status status;
  call_->Finish(&status, nullptr);
  Wait();
  return status;
}

grpc::Status GenericCall::Exchange(const std::string& message) {
  Start();
  if (Send(message)) SendsDone();
  while (Read()) {
  }
  return Finish();
}

}  // namespace eta::testing
