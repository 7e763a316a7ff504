// Health, reflection, listening and drain.
#include <thread>

#include "engine/base/error.h"
#include "engine/front/router.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/recorder.h"
#include "tests/testing/engine/submit.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kServing = 1;
constexpr int kNotServing = 2;

// grpc.health.v1: request { string service = 1; }, response { enum status = 1; }.
std::string HealthRequest(const std::string& service) {
  if (service.empty()) return "";
  return std::string("\x0a") + static_cast<char>(service.size()) + service;
}

int HealthStatus(const std::optional<std::string>& response) {
  return response && response->size() == 2 && (*response)[0] == '\x08' ? (*response)[1] : -1;
}

class LifecycleTest : public ServiceTest {
 protected:
  int Check(const std::string& service) {
    GenericCall call(NewChannel(), "/grpc.health.v1.Health/Check");
    call.Start();
    if (call.Send(HealthRequest(service))) call.SendsDone();
    const int status = HealthStatus(call.Read());
    call.Read();
    call.Finish();
    return status;
  }
  bool Becomes(const std::string& service, int status) {
    for (int i = 0; i < 500; ++i) {
      if (Check(service) == status) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
};

TEST_F(LifecycleTest, IsHealthyUnderEveryName) {
  for (const std::string name : {"", "liveness", "readiness", "eta.v1.EtaService",
                                 "eta.v1.ProfileService", "eta.v1.AdminService"}) {
    EXPECT_EQ(Check(name), kServing) << name;
  }
  EXPECT_EQ(Check("something.else"), -1);
}

TEST_F(LifecycleTest, WatchersSeeTheDrain) {
  ServerOptions options;
  options.drain_delay = milliseconds(300);  // time for the news to arrive before calls are ended
  Serve(options, Limits());
  GenericCall watch(channel_, "/grpc.health.v1.Health/Watch");
  watch.Start();
  ASSERT_TRUE(watch.Send(HealthRequest("readiness")));
  watch.SendsDone();
  EXPECT_EQ(HealthStatus(watch.Read()), kServing);
  std::thread drain([this] { server_->Drain(); });
  EXPECT_EQ(HealthStatus(watch.Read()), kNotServing);
  drain.join();
}

TEST_F(LifecycleTest, WatchersAreToldOfChangesOnly) {
  ServerOptions options;
  options.stall_timeout = milliseconds(300);
  Limits limits;
  limits.max_congestion = milliseconds(100);
  Serve(options, limits);
  HealthListener liveness(NewChannel(), "liveness");
  EXPECT_EQ(liveness.Next(), HealthStatus::SERVING);
  std::this_thread::sleep_for(milliseconds(300));  // time for some polls of the engine
  EngineSnapshot snapshot;
  snapshot.running = 1;
  engine_->SetSnapshot(snapshot);
  EXPECT_EQ(liveness.Next(), HealthStatus::NOT_SERVING);
  std::this_thread::sleep_for(milliseconds(300));
  engine_->SetSnapshot(EngineSnapshot());
  EXPECT_EQ(liveness.Next(), HealthStatus::SERVING);
}

TEST_F(LifecycleTest, AStalledStepLoopIsNotAlive) {
  ServerOptions options;
  options.stall_timeout = milliseconds(300);
  Limits limits;
  limits.max_congestion = milliseconds(100);
  Serve(options, limits);
  EngineSnapshot snapshot;
  snapshot.running = 1;
  snapshot.steps = 5;
  engine_->SetSnapshot(snapshot);
  EXPECT_TRUE(Becomes("liveness", kNotServing));
  EXPECT_EQ(Check("readiness"), kServing);
  snapshot.steps = 6;
  engine_->SetSnapshot(snapshot);
  EXPECT_TRUE(Becomes("liveness", kServing));
  snapshot.running = 0;
  engine_->SetSnapshot(snapshot);
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(Check("liveness"), kServing) << "an idle server is alive";
}

TEST_F(LifecycleTest, ALostDeviceIsNeitherAliveNorReady) {
  EngineSnapshot snapshot;
  snapshot.device_lost = true;
  engine_->SetSnapshot(snapshot);
  EXPECT_TRUE(Becomes("liveness", kNotServing));
  EXPECT_TRUE(Becomes("readiness", kNotServing));
  EXPECT_TRUE(Becomes("", kNotServing));
}

TEST_F(LifecycleTest, ARequestGoesToTheDeviceThatHasTimeForIt) {
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<PuppetEngine*> devices;
  for (int i = 0; i < 2; ++i) {
    auto device = std::make_unique<PuppetEngine>();
    devices.push_back(device.get());
    engines.push_back(std::move(device));
  }
  Router router(std::move(engines), Limits());
  EngineSnapshot busy;
  busy.predicted_wait = std::chrono::seconds(60);
  devices[0]->SetSnapshot(busy);
  const auto submit = [&](seconds until_deadline) {
    Request request;
    request.id = "r";
    request.prompt = "hello";
    request.deadline = Clock::now() + until_deadline;
    EXPECT_TRUE(testing::Submit(router, request, std::make_shared<Recorder>()).ok());
  };
  submit(seconds(600));
  EXPECT_EQ(devices[0]->submissions(), 1) << "the first of two that have as little to do";
  submit(seconds(30));
  submit(seconds(30));
  EXPECT_EQ(devices[1]->submissions(), 2) << "not one after the other: the first would be late";
  devices[1]->SetSnapshot(busy);
  submit(seconds(30));
  EXPECT_EQ(devices[0]->submissions(), 2) << "late on both";
}

TEST_F(LifecycleTest, IsReadyWhileOneOfTwoDevicesWorksAndAliveWhileItMoves) {
  auto first = std::make_unique<PuppetEngine>();
  auto second = std::make_unique<PuppetEngine>();
  PuppetEngine* const devices[] = {first.get(), second.get()};
  std::vector<std::unique_ptr<Engine>> engines;
  engines.push_back(std::move(first));
  engines.push_back(std::move(second));
  Limits limits;
  limits.max_congestion = milliseconds(100);
  Router router(std::move(engines), limits);
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.stall_timeout = milliseconds(300);
  auto server = Server::Start(options, {.engine = router});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);

  EngineSnapshot lost;
  lost.device_lost = true;
  lost.running = 1;  // a lost device's requests do not count as a stall
  devices[0]->SetSnapshot(lost);
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(Check("readiness"), kServing);
  EXPECT_EQ(Check("liveness"), kServing);
  EngineSnapshot stalled;
  stalled.running = 1;
  devices[1]->SetSnapshot(stalled);
  EXPECT_TRUE(Becomes("liveness", kNotServing));
  EXPECT_EQ(Check("readiness"), kServing);
  devices[1]->SetSnapshot(lost);
  EXPECT_TRUE(Becomes("readiness", kNotServing));
  EXPECT_TRUE(Becomes("liveness", kNotServing));
  server_.reset();
}

TEST_F(LifecycleTest, ReflectionIsOffUnlessAskedFor) {
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string list_services = std::string("\x3a\x01*", 3);  // field 7
  EXPECT_EQ(GenericCall(channel_, method).Exchange(list_services).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  ServerOptions options;
  options.reflection = true;
  Serve(options);
  GenericCall call(channel_, method);
  call.Start();
  ASSERT_TRUE(call.Send(list_services));
  const auto services = call.Read();
  ASSERT_TRUE(services.has_value());
  EXPECT_NE(services->find("eta.v1.EtaService"), std::string::npos);
  call.SendsDone();
  call.Read();
  EXPECT_TRUE(call.Finish().ok());
}

TEST_F(LifecycleTest, DrainLetsRunningCallsFinishAndRefusesNewOnes) {
  ClientCall running(*stub_);
  running.Start(Ask("take your time"));
  const auto call = engine_->TakeAndStart();
  std::thread drain([this] { server_->Drain(); });
  EXPECT_TRUE(Becomes("readiness", kNotServing));
  EXPECT_EQ(Check("liveness"), kServing);
  AwaitClosed(*stub_);  // one that is still taken would wait for the puppet
  grpc::Status status = ClientCall(*stub_).Refusal(Ask("me too"));
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::UNAVAILABLE, "DRAINING"));
  call->Say("done");
  call->Finish();
  EXPECT_EQ(running.ReadText(), "done");
  EXPECT_TRUE(running.Finish().ok());
  drain.join();
}

// bad input: Server | SIGTERM under load | new calls UNAVAILABLE, DRAINING; running ones end within
//   the grace; exit code 0 | DrainProcess.LosesNothing
TEST_F(LifecycleTest, WhatOutlivesTheDrainIsToldHowFarItGot) {
  ServerOptions options;
  options.drain_timeout = milliseconds(100);
  Serve(options);
  ClientCall running(*stub_);
  running.Start(Ask("take your time"));
  const auto call = engine_->TakeAndStart();
  call->Say("half a");
  server_->Drain();
  EXPECT_EQ(running.ReadText(), "half a");
  const grpc::Status status = running.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(MetadataOf(status, "output_tokens"), "1");
}

TEST_F(LifecycleTest, TheDrainCanBeHurried) {
  ClientCall running(*stub_);
  running.Start(Ask("take your time"));
  const auto call = engine_->TakeAndStart();
  std::thread drain([this] { server_->Drain(); });
  EXPECT_TRUE(Becomes("readiness", kNotServing));
  server_->HurryDrain();
  running.ReadText();
  EXPECT_EQ(running.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
}

TEST_F(LifecycleTest, CallsAreTakenDuringTheDrainDelay) {
  ServerOptions options;
  options.drain_delay = seconds(2);
  Serve(options);
  std::thread drain([this] { server_->Drain(); });
  EXPECT_TRUE(Becomes("readiness", kNotServing));
  ExpectGoodCall();
  server_->HurryDrain();
  drain.join();
}

TEST_F(LifecycleTest, RefusesToListenWhereItIsNotSafeOrNotPossible) {
  const auto start = [this](const std::string& listen, bool allowed) {
    ServerOptions options;
    options.listen = listen;
    options.allow_unauthenticated_network = allowed;
    return Server::Start(options, {.engine = *engine_}).status().code();
  };
  for (const std::string listen :
       {"0.0.0.0:0", "[::]:0", "10.1.2.3:80", "example.org:80", "*:80"}) {
    EXPECT_EQ(start(listen, false), absl::StatusCode::kInvalidArgument) << listen;
  }
  for (const std::string listen : {"", "8471", ":8471", "localhost:", "localhost:99999",
                                   "unix:", "::1:80", "127.0.0.1:http"}) {
    EXPECT_EQ(start(listen, true), absl::StatusCode::kInvalidArgument) << listen;
  }
  EXPECT_EQ(start(server_->address(), false), absl::StatusCode::kUnavailable) << "address in use";
  ServerOptions impatient;
  impatient.stall_timeout = milliseconds(10);
  EXPECT_EQ(Server::Start(impatient, {.engine = *engine_}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(LifecycleTest, ListensOnAUnixSocket) {
  const std::string path = ::testing::TempDir() + "eta-lifecycle-test.sock";
  ServerOptions options;
  options.listen = "unix:" + path;
  PuppetEngine engine;
  auto server = Server::Start(options, {.engine = engine});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::EtaService::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  engine.Refuse(MakeError(absl::StatusCode::kUnavailable, "not now", {.reason = "DRAINING"}));
  EXPECT_EQ(ReasonOf(ClientCall(*stub).Refusal(Ask("hello"))), "DRAINING");
}

}  // namespace
}  // namespace eta::testing
