// A collector that keeps the spans it is sent, on a port of this host.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "tests/testing/service/span_reading.h"

namespace eta::testing {

class SpanRecorder final : public otlp::collector::trace::v1::TraceService::Service {
 public:
  using Request = otlp::collector::trace::v1::ExportTraceServiceRequest;
  using Response = otlp::collector::trace::v1::ExportTraceServiceResponse;

  // Listens on `port`, 0: any.
  explicit SpanRecorder(int port = 0, std::shared_ptr<grpc::ServerCredentials> credentials =
                                          grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), std::move(credentials), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~SpanRecorder() override { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }
  std::string endpoint() const { return absl::StrCat("http://127.0.0.1:", port_); }

  // How it answers from now on.
  void Answer(grpc::Status status, int64_t rejected = 0) {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    rejected_ = rejected;
  }

  std::vector<Request> Batches() const {
    const std::lock_guard lock(mutex_);
    return batches_;
  }
  // Returns the spans of all batches once there are `count`; after 20 s those that there are.
  std::vector<otlp::trace::v1::Span> Await(size_t count) {
    std::unique_lock lock(mutex_);
    const auto spans = [this] {
      std::vector<otlp::trace::v1::Span> all;
      for (const Request& batch : batches_) {
        for (otlp::trace::v1::Span& span : SpansOf(batch)) all.push_back(std::move(span));
      }
      return all;
    };
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return spans().size() >= count; });
    return spans();
  }

 private:
  grpc::Status Export(grpc::ServerContext*, const Request* request, Response* response) override {
    const std::lock_guard lock(mutex_);
    batches_.push_back(*request);
    changed_.notify_all();
    if (rejected_ > 0) {
      response->mutable_partial_success()->set_rejected_spans(rejected_);
      response->mutable_partial_success()->set_error_message("no room");
    }
    return status_;
  }

  int port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Request> batches_;
  grpc::Status status_;
  int64_t rejected_ = 0;
  std::unique_ptr<grpc::Server> server_;  // last: it uses the others
};

}  // namespace eta::testing
