// The prefix cache's events of the built server, read over ZeroMQ while it serves.
#include <csignal>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/error_details.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/zmq_reader.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string kPublisherServer = ETA_BINARY_DIR "/eta-server";
const std::string kPublisherModel = ETA_SOURCE_DIR "/models/eta-27m";

// The events of a replay from the beginning.
std::vector<Json> AllEvents(const std::string& address) {
  ZmqReader reader(ZMQ_DEALER, address);
  reader.Send({"", BigEndian(0)});
  std::vector<Json> events;
  for (auto frames = reader.Receive(); frames.at(1) != BigEndian(~uint64_t{0});
       frames = reader.Receive()) {
    const Json batch = Json::from_msgpack(frames.at(2));
    events.insert(events.end(), batch.at(1).begin(), batch.at(1).end());
  }
  return events;
}

TEST(KvEventsProcess, ARouterReadsWhichPromptIsCached) {
  ServerProcess server(kPublisherServer, {"--model", kPublisherModel, "--listen", "127.0.0.1:0",
                                          "--kv_events", "tcp://127.0.0.1:0", "--kv_events_replay",
                                          "tcp://127.0.0.1:0", "--kv_pool_bytes", "64MiB"});
  const std::string events = server.AwaitLine("kv events on ");
  const std::string again = server.AwaitLine("kv events again on ");
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  EXPECT_THAT(events, HasSubstr("tcp://127.0.0.1:"));
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The tower stood on a hill by the sea. ";
  grpc::ClientContext context;
  v1::TokenizeRequest tokenize;
  tokenize.set_text(text);
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub->Tokenize(&context, tokenize, &tokens).ok());
  const std::vector<int32_t> ids(tokens.token_ids().begin(), tokens.token_ids().end());
  ASSERT_GT(ids.size(), 128u);

  ClientCall client(*stub);
  v1::GenerateRequest request = Ask(text);
  request.mutable_stopping()->set_max_tokens(2);
  client.Start(request);
  client.ReadText();
  ASSERT_TRUE(client.Finish().ok());
  std::vector<int32_t> cached;
  Json parent;
  for (const Json& event : AllEvents(again)) {
    EXPECT_EQ(event.at("type"), "BlockStored");
    EXPECT_EQ(event.at("block_size"), 64);
    EXPECT_EQ(event.at("parent_block_hash"), parent) << "one prompt, one chain";
    parent = event.at("block_hashes").back();
    const auto stored = event.at("token_ids").get<std::vector<int32_t>>();
    cached.insert(cached.end(), stored.begin(), stored.end());
  }
  const size_t full = ids.size() / 64 * 64;
  EXPECT_EQ(cached, std::vector<int32_t>(ids.begin(), ids.begin() + full));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
}

// bad input: KV events | `--kv_events` of another form, of the network unasked, without a prefix
//   cache, or of an address that this host has not | exit code 2, one line that names the flag
TEST(KvEventsProcess, DoesNotStartWhereItsFlagsAreBad) {
  const auto refused = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--model", kPublisherModel, "--listen", "127.0.0.1:0"});
    ServerProcess server(kPublisherServer, flags);
    const ServerProcess::Exit exit = server.AwaitExit();
    EXPECT_EQ(exit.code, 2) << exit.errors;
    return exit.errors;
  };
  const std::string local = "tcp://127.0.0.1:0";
  for (const char* address : {"127.0.0.1:0", "tcp://", "tcp://127.0.0.1", "ipc:///tmp/events"}) {
    EXPECT_THAT(refused({"--kv_events", address}), HasSubstr("--kv_events: must be")) << address;
  }
  EXPECT_THAT(refused({"--kv_events", "tcp://*:0"}), HasSubstr("--allow_network_kv_events"));
  EXPECT_THAT(refused({"--kv_events", local, "--kv_events_replay", "tcp://0.0.0.0:0"}),
              HasSubstr("--kv_events_replay: other hosts"));
  EXPECT_THAT(refused({"--kv_events", local, "--allow_network_kv_events"}),
              HasSubstr("only this host"));
  EXPECT_THAT(refused({"--kv_events_replay", local}), HasSubstr("need --kv_events"));
  EXPECT_THAT(refused({"--kv_events", local, "--no-prefix_cache"}),
              HasSubstr("needs --prefix_cache"));
  EXPECT_THAT(refused({"--kv_events", "tcp://192.0.2.1:0", "--allow_network_kv_events"}),
              HasSubstr("--kv_events: cannot listen on"));
}

}  // namespace
}  // namespace eta::testing
