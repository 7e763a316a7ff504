// Both APIs of one server on a real engine: the same request has the same tokens.
#include <functional>

#include "gmock/gmock.h"
#include "service/server/server.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/service/gateway_fixture.h"

namespace eta::testing {
namespace {

using ::testing::Contains;
using ::testing::SizeIs;
using Ids = std::vector<int32_t>;

class GatewayTokensTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ = testing::Start(OptionsFor(model_));
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.vllm_listen = {"127.0.0.1:0=tiny:full"};
    auto server = Server::Start(options, {.engine = *engine_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::EtaService::NewStub(OwnConnection(server_->address()));
    gateway_ = OwnConnection(server_->vllm_listeners().at(0)->address());
  }

  // The answer of eta.v1, full attention; with the id that ended it.
  Ids Own(const Ids& prompt, const std::function<void(v1::GenerateRequest&)>& change = {}) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.mutable_output()->set_token_ids(true);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(20);
    request.mutable_attention()->mutable_full();
    if (change) change(request);
    ClientCall client(*stub_);
    client.Start(request);
    Ids ids;
    for (auto message = client.Read(); message.event_case() != v1::GenerateResponse::EVENT_NOT_SET;
         message = client.Read()) {
      ids.insert(ids.end(), message.delta().token_ids().begin(), message.delta().token_ids().end());
      if (!message.has_finished()) continue;
      if (message.finished().matched_case() == v1::Finished::kStopTokenId) {
        ids.push_back(message.finished().stop_token_id());
      }
    }
    EXPECT_TRUE(client.Finish().ok());
    return ids;
  }

  gateway_pb::GenerateRequest Asking(const Ids& prompt, bool stream) {
    auto request = GatewayRequest(prompt, stream);
    request.mutable_sampling_params()->set_temperature(0);
    request.mutable_sampling_params()->set_max_tokens(20);
    return request;
  }
  // The ids of a gateway's answers, and its ends in `client`.
  std::vector<Ids> Answers(const gateway_pb::GenerateRequest& request, GatewayCall& client) {
    client.Start(request);
    client.ReadAll();
    const grpc::Status status = client.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (request.stream()) return client.ids;
    std::vector<Ids> answers(client.completes.size());
    for (const auto& complete : client.completes) {
      answers.at(complete.index())
          .assign(complete.output_ids().begin(), complete.output_ids().end());
    }
    return answers;
  }
  std::vector<Ids> Answers(const gateway_pb::GenerateRequest& request) {
    GatewayCall client(gateway_);
    return Answers(request, client);
  }

  TinyModel model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
  std::shared_ptr<grpc::Channel> gateway_;
};

TEST_F(GatewayTokensTest, AnswersAreTheSameStreamedAndNot) {
  const Ids prompt = Prompt(50, 5);
  const Ids own = Own(prompt);
  ASSERT_FALSE(own.empty());
  for (const bool stream : {true, false}) {
    GatewayCall client(gateway_);
    EXPECT_EQ(Answers(Asking(prompt, stream), client), std::vector<Ids>{own}) << stream;
    ASSERT_THAT(client.completes, SizeIs(1));
    EXPECT_EQ(client.completes[0].completion_tokens(), own.size());
    EXPECT_EQ(client.completes[0].prompt_tokens(), 50u);
  }
}

TEST_F(GatewayTokensTest, SeedsCountUpFromAnswerToAnswer) {
  const Ids prompt = Prompt(30, 6);
  const auto seeded = [&](uint64_t seed) {
    return Own(prompt, [seed](v1::GenerateRequest& request) {
      request.mutable_sampling()->set_temperature(1);
      request.mutable_sampling()->set_seed(seed);
    });
  };
  auto request = Asking(prompt, /*stream=*/true);
  request.mutable_sampling_params()->set_temperature(1);
  request.mutable_sampling_params()->set_seed(11);
  request.mutable_sampling_params()->set_n(3);
  for (const bool stream : {true, false}) {
    request.set_stream(stream);
    EXPECT_EQ(Answers(request), (std::vector<Ids>{seeded(11), seeded(12), seeded(13)}));
  }
}

TEST_F(GatewayTokensTest, AStopTokenIsAmongTheIds) {
  const Ids prompt = Prompt(50, 5);
  const int32_t stop = Own(prompt).at(6);
  const Ids own = Own(prompt, [stop](v1::GenerateRequest& request) {
    request.mutable_stopping()->add_stop_token_ids(stop);
  });
  EXPECT_EQ(own.back(), stop);
  auto request = Asking(prompt, /*stream=*/true);
  request.mutable_sampling_params()->add_stop_token_ids(static_cast<uint32_t>(stop));
  GatewayCall client(gateway_);
  EXPECT_EQ(Answers(request, client), std::vector<Ids>{own});
  EXPECT_EQ(client.completes.at(0).matched_token_id(), static_cast<uint32_t>(stop));
  EXPECT_EQ(client.completes.at(0).finish_reason(), "stop");
}

TEST_F(GatewayTokensTest, StopStringsEndTheAnswerInTheEngine) {
  const Ids prompt = Prompt(50, 5);
  const Ids free = Own(prompt);
  const auto read = engine_->Detokenize(free, /*special_tokens=*/false);
  ASSERT_TRUE(read.ok());
  // A character of it: whatever it is, both stop at it.
  std::string stop;
  for (const char c : read->text) {
    if (c > ' ' && c < '\x7f') stop = std::string(1, c);
  }
  ASSERT_FALSE(stop.empty());
  const Ids own = Own(prompt, [&](v1::GenerateRequest& request) {
    request.mutable_stopping()->add_stop_strings(stop);
  });
  auto request = Asking(prompt, /*stream=*/true);
  request.mutable_sampling_params()->add_stop(stop);
  request.mutable_sampling_params()->set_skip_special_tokens(true);
  GatewayCall client(gateway_);
  EXPECT_EQ(Answers(request, client), std::vector<Ids>{own});
  EXPECT_EQ(client.completes.at(0).matched_stop_str(), stop);
}

TEST_F(GatewayTokensTest, LogarithmsStandBesideTheirTokens) {
  const Ids prompt = Prompt(20, 7);
  for (const bool stream : {true, false}) {
    auto request = Asking(prompt, stream);
    request.mutable_sampling_params()->set_logprobs(2);
    request.mutable_sampling_params()->set_prompt_logprobs(1);
    GatewayCall client(gateway_);
    const Ids ids = Answers(request, client).at(0);
    gateway_pb::OutputLogProbs output;
    gateway_pb::InputLogProbs input;
    for (const auto& chunk : client.chunks) {
      output.MergeFrom(chunk.output_logprobs());
      input.MergeFrom(chunk.input_logprobs());
    }
    output.MergeFrom(client.completes.at(0).output_logprobs());
    input.MergeFrom(client.completes.at(0).input_logprobs());
    EXPECT_EQ(Ids(output.token_ids().begin(), output.token_ids().end()), ids);
    ASSERT_EQ(output.token_logprobs_size(), static_cast<int>(ids.size()));
    ASSERT_EQ(output.top_logprobs_size(), static_cast<int>(ids.size()));
    EXPECT_EQ(output.top_logprobs(0).token_ids_size(), 2);
    EXPECT_EQ(static_cast<int32_t>(output.top_logprobs(0).token_ids(0)), ids[0]) << "greedy";
    EXPECT_EQ(Ids(input.token_ids().begin(), input.token_ids().end()), prompt);
    ASSERT_EQ(input.token_logprobs_size(), static_cast<int>(prompt.size()));
    EXPECT_FALSE(input.token_logprobs(0).has_value());
    EXPECT_LE(input.token_logprobs(1).value(), 0.0f);
  }
}

TEST_F(GatewayTokensTest, ALongPromptIsCutWhereItIsAskedFor) {
  const Ids prompt = Prompt(60, 8);
  auto request = Asking(prompt, /*stream=*/true);
  request.mutable_sampling_params()->set_truncate_prompt_tokens(40);
  GatewayCall client(gateway_);
  EXPECT_EQ(Answers(request, client), std::vector<Ids>{Own({prompt.begin() + 20, prompt.end()})});
  EXPECT_EQ(client.completes.at(0).prompt_tokens(), 40u);
}

TEST_F(GatewayTokensTest, ATextMaySpellSpecialTokens) {
  auto request = Asking({}, /*stream=*/true);
  request.set_text("<s>Once upon a time");
  const Ids own = Own({}, [](v1::GenerateRequest& asked) {
    asked.set_text("<s>Once upon a time");
    asked.set_parse_special(true);
  });
  EXPECT_EQ(Answers(request), std::vector<Ids>{own});
}

TEST_F(GatewayTokensTest, MetadataChoosesHowItAttends) {
  const Ids prompt = Prompt(400, 9);
  GatewayCall client(gateway_);
  client.context.AddMetadata("x-eta-attention", "dynamic");
  const Ids own = Own(
      prompt, [](v1::GenerateRequest& request) { request.mutable_attention()->mutable_dynamic(); });
  EXPECT_EQ(Answers(Asking(prompt, /*stream=*/true), client), std::vector<Ids>{own});
  EXPECT_EQ(client.Trailer("x-eta-attention"), "dynamic");
  EXPECT_NE(client.Trailer("x-eta-union-density"), "");
  GatewayCall full(gateway_);
  Answers(Asking(prompt, /*stream=*/true), full);
  EXPECT_EQ(full.Trailer("x-eta-union-density"), "1") << "the listener's choice";
}

TEST_F(GatewayTokensTest, AFlushedCacheHoldsNothing) {
  const Ids prompt = Prompt(100, 10);
  const auto cached = [&] {
    GatewayCall client(gateway_);
    Answers(Asking(prompt, /*stream=*/false), client);
    return client.completes.at(0).cached_tokens();
  };
  cached();
  EXPECT_EQ(cached(), 96u);
  ::smg::grpc::common::FlushCacheResponse flushed;
  EXPECT_TRUE(AskGateway(gateway_, &gateway_pb::VllmEngine::Stub::FlushCache,
                         ::smg::grpc::common::FlushCacheRequest(), flushed)
                  .ok());
  EXPECT_TRUE(flushed.success());
  EXPECT_EQ(cached(), 0u);
}

}  // namespace
}  // namespace eta::testing
