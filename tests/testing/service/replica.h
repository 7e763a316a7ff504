// The built server as a process, and its clients.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "eta/v1/profiles.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {

// One process of the server, and its clients.
class Replica {
 public:
  Replica(const std::string& model, const std::string& store,
          const std::vector<std::string>& more = {})
      : process_(ETA_BINARY_DIR "/eta-server", Flags(model, store, more)) {
    if (std::find(more.begin(), more.end(), "--metrics_listen") != more.end()) {
      const std::string url = process_.AwaitLine("metrics on ");
      metrics_port_ = std::stoi("0" + url.substr(url.rfind(':') + 1));
    }
    address_ = process_.AwaitAddress();
    if (address_.empty()) return;
    channel_ = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
    stub = v1::EtaService::NewStub(channel_);
    profiles = v1::ProfileService::NewStub(channel_);
  }
  bool up() const { return !address_.empty(); }
  const std::string& address() const { return address_; }
  int metrics_port() const { return metrics_port_; }  // 0: without --metrics_listen
  ServerProcess& process() { return process_; }

  // Returns the stored profile, or leaves the error in `status`.
  std::optional<v1::Profile> Calibrate(const v1::CalibrateRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
    const auto reader = stub->Calibrate(&context, request);
    std::optional<v1::Profile> profile;
    v1::CalibrateResponse message;
    progress = 0;
    while (reader->Read(&message)) {
      if (message.has_progress()) ++progress;
      if (message.has_profile()) profile = message.profile();
    }
    status = reader->Finish();
    return profile;
  }
  // Returns what the first message of a short answer says, or leaves the error in `status`.
  v1::AttentionUsed Generate(const std::string& profile) {
    return Generate(Ask("The quick brown fox"), profile);
  }
  v1::AttentionUsed Generate(v1::GenerateRequest request, const std::string& profile) {
    request.mutable_stopping()->set_max_tokens(4);
    request.mutable_stopping()->set_ignore_eos(true);
    if (!profile.empty()) request.mutable_attention()->set_profile(profile);
    ClientCall call(*stub);
    call.Start(request);
    const v1::AttentionUsed used = call.Read().started().attention();
    call.ReadText();
    status = call.Finish();
    finished = call.finished;
    return used;
  }
  // Calls a method of profiles. Leaves its status in `status`.
  template <typename Request, typename Response>
  Response Call(grpc::Status (v1::ProfileService::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Response*),
                const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    Response response;
    status = (profiles.get()->*method)(&context, request, &response);
    return response;
  }
  v1::Profile Import(const std::string& json) {
    v1::ImportProfileRequest request;
    request.set_json(json);
    return Call(&v1::ProfileService::Stub::ImportProfile, request);
  }
  v1::Profile Get(const std::string& reference) {
    v1::GetProfileRequest request;
    request.set_profile(reference);
    return Call(&v1::ProfileService::Stub::GetProfile, request);
  }
  std::string Export(const std::string& reference) {
    v1::ExportProfileRequest request;
    request.set_profile(reference);
    return Call(&v1::ProfileService::Stub::ExportProfile, request).json();
  }

  // The versions of a profile, newest first; none for an unknown profile.
  std::vector<int64_t> Versions(const std::string& name) {
    v1::ListProfileVersionsRequest request;
    request.set_name(name);
    request.set_page_size(1000);
    const auto list = Call(&v1::ProfileService::Stub::ListProfileVersions, request);
    std::vector<int64_t> versions;
    for (const auto& summary : list.versions()) versions.push_back(summary.version());
    return versions;
  }
  void Delete(const std::string& name) {
    v1::DeleteProfileRequest request;
    request.set_name(name);
    Call(&v1::ProfileService::Stub::DeleteProfile, request);
  }

  std::unique_ptr<v1::EtaService::Stub> stub;
  std::unique_ptr<v1::ProfileService::Stub> profiles;
  grpc::Status status;    // of the last call
  int progress = 0;       // messages of the last calibration
  v1::Finished finished;  // of the last Generate

 private:
  static std::vector<std::string> Flags(const std::string& model, const std::string& store,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--model",         model,  "--listen", "127.0.0.1:0",
                                      "--kv_pool_bytes", "16MiB"};
    if (!store.empty()) {
      flags.push_back("--profile_store");
      flags.push_back(store);
    }
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  ServerProcess process_;
  int metrics_port_ = 0;
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
};

// A calibration of a tiny model that takes a moment.
inline v1::CalibrateRequest SmallCalibration(const std::string& name) {
  v1::CalibrateRequest request;
  request.set_name(name);
  for (int i = 0; i < 4; ++i) {
    auto* ids = request.add_samples()->mutable_token_ids();
    for (int j = 0; j < 256; ++j) ids->add_ids(10 + (i * 977 + j * j * 31 + j) % 8000);
  }
  request.mutable_target()->mutable_match_dynamic();
  request.set_sequence_tokens(256);
  request.set_allow_loss(true);  // of noise nothing is known
  return request;
}
// One that runs until it is stopped, as far as a test waits.
inline v1::CalibrateRequest LongCalibration(const std::string& name) {
  v1::CalibrateRequest request = SmallCalibration(name);
  for (int i = 0; i < 200; ++i) {
    v1::CalibrationSample sample = request.samples(i % 4);
    sample.mutable_token_ids()->set_ids(1, 10 + i);  // equal documents are left out
    *request.add_samples() = std::move(sample);
  }
  return request;
}

}  // namespace eta::testing
