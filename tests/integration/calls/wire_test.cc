// Messages of peers that are not well-behaved clients. Every message is answered, nothing breaks,
// and a good call works afterwards.
#include <thread>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

class WireTest : public ServiceTest {
 protected:
  grpc::Status SendBytes(const std::string& bytes) {
    return GenericCall(channel_, kGenerateMethod).Exchange(bytes);
  }
  void ExpectMalformed(const std::string& bytes, const std::string& what) {
    const grpc::Status status = SendBytes(bytes);
    EXPECT_THAT(status, FailsWith(grpc::StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE")) << what;
    EXPECT_EQ(engine_->submissions(), 0) << what;
  }
};

// bad input: Messages | truncated or garbage protobuf; nested over 100 deep | INVALID_ARGUMENT,
//   MALFORMED_MESSAGE | BadInputTest.BytesThatAreNoMessage
TEST_F(WireTest, BytesThatAreNoRequestAreInvalid) {
  ExpectMalformed("\xff\xff\xff\xff", "garbage");
  std::string truncated = Ask("a prompt of some length").SerializeAsString();
  truncated.resize(truncated.size() - 4);
  ExpectMalformed(truncated, "truncated");
  v1::GenerateRequest request = Ask("x");
  std::string bad_utf8 = request.SerializeAsString();
  bad_utf8 += "\x0a\x02\xc3\x28";  // field 1, model, a string
  ExpectMalformed(bad_utf8, "a string that is not UTF-8");
  const std::string nested =
      std::string(120, '\x7b') + std::string(120, '\x7c');  // groups, field 15
  ExpectMalformed(nested, "nested 120 deep");
  ExpectGoodCall();
}

// bad input: Prompts | not UTF-8: split or overlong sequences, surrogates | INVALID_ARGUMENT, field
//   `text`, which is `bytes` so that the service can say so | BadInputTest.PromptsThatAreNotUtf8
TEST_F(WireTest, APromptThatIsNotUtf8IsInvalid) {
  for (const std::string bad :
       {"\xc3\x28", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "x\xe2\x82"}) {
    const grpc::Status status = SendBytes(Ask(bad).SerializeAsString());
    EXPECT_THAT(status, FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "text"));
  }
  ExpectGoodCall();
}

// bad input: Messages | 900 KB of unknown fields | ignored, and counted against the size of the
//   message | BadInputTest.UnknownFieldsByTheHundredThousand
TEST_F(WireTest, UnknownFieldsAreIgnored) {
  std::string bytes = Ask("hello").SerializeAsString();
  while (bytes.size() < 900 * 1024) bytes += "\xa0\x06\x01";  // field 100, a varint
  GenericCall client(channel_, kGenerateMethod);
  client.Start();
  ASSERT_TRUE(client.Send(bytes));
  client.SendsDone();
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(std::get<std::string>(call->request().prompt), "hello");
  call->Start();
  call->Finish();
  while (client.Read()) {
  }
  EXPECT_TRUE(client.Finish().ok());
}

// bad input: Messages | over 1 MiB, by less than another | RESOURCE_EXHAUSTED, MESSAGE_TOO_LARGE,
//   with the field that has most of the bytes | BadInputTest.MessagesOverTheLimit
TEST_F(WireTest, AMessageOverTheLimitIsRefused) {
  constexpr size_t kLimit = 1 << 20;
  const auto refused = [this](const std::string& bytes) {
    const grpc::Status status = SendBytes(bytes);
    EXPECT_THAT(status, FailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE"));
    EXPECT_EQ(MetadataOf(status, "limit"), std::to_string(kLimit));
    return FieldOf(status);
  };
  v1::GenerateRequest request = Ask("x");
  request.mutable_format()->set_json_schema(std::string(kLimit, ' '));
  EXPECT_EQ(refused(request.SerializeAsString()), "format.json_schema");
  request = {};
  request.mutable_token_ids()->mutable_ids()->Resize(600'000, 500);
  EXPECT_EQ(refused(request.SerializeAsString()), "token_ids.ids");
  request = {};
  for (const size_t bytes : {size_t{400'000}, kLimit, size_t{1}}) {
    request.mutable_chat()->add_messages()->set_text(std::string(bytes, 'x'));
  }
  EXPECT_EQ(refused(request.SerializeAsString()), "chat.messages[1].text");
  request.mutable_chat()->mutable_messages(1)->set_text(std::string(kLimit / 2, 'x'));
  request.mutable_chat()->mutable_messages(2)->set_text(std::string(kLimit / 2, 'x'));
  EXPECT_EQ(refused(request.SerializeAsString()), "chat") << "no message has most of it";
  request = Ask(std::string(kLimit / 2, 'x'));
  request.mutable_format()->set_regex(std::string(kLimit / 2, 'x'));
  EXPECT_EQ(refused(request.SerializeAsString()), "") << "no field has most of it";
  EXPECT_EQ(refused(std::string(kLimit + 1, 'x')), "") << "no message at all";
  EXPECT_EQ(refused(std::string(kLimit + 1, '\xff')), "");
  std::string cut = request.SerializeAsString();
  cut.resize(kLimit + 1);
  EXPECT_EQ(refused(cut), "format") << "cut in it: by the length that it states";
  EXPECT_EQ(SendBytes(std::string(2 * kLimit + 1, 'x')).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "gRPC's own";
  EXPECT_EQ(engine_->submissions(), 0);
  ExpectGoodCall();
}

// bad input: Messages | compressed; a gzip bomb | UNIMPLEMENTED, unopened: floods of bombs of 300
//   MB cost less than 8 MiB | HostileTest.ABombIsRefusedUnopened
TEST_F(WireTest, ACompressedMessageIsRefusedUnopened) {
  GenericCall client(channel_, kGenerateMethod);
  client.context().set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const grpc::Status status = client.Exchange(std::string(8 << 20, '\0'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(engine_->submissions(), 0);
  ExpectGoodCall();
}

// bad input: Messages | unknown method or service | UNIMPLEMENTED | BadInputTest.UnknownMethods
TEST_F(WireTest, UnknownMethodsAndServicesAreUnimplemented) {
  for (const std::string method :
       {"/eta.v1.EtaService/Nope", "/eta.v2.EtaService/Generate", "/x"}) {
    EXPECT_EQ(GenericCall(channel_, method).Exchange("").error_code(),
              grpc::StatusCode::UNIMPLEMENTED)
        << method;
  }
  ExpectGoodCall();
}

// bad input: Messages | none in a call that takes one | INVALID_ARGUMENT, MALFORMED_MESSAGE;
//   nothing reaches the engine | BadInputTest.CallsWithNoMessageOrTwo
TEST_F(WireTest, ACallWithoutAMessageNeverReachesTheEngine) {
  GenericCall client(channel_, kGenerateMethod);
  client.Start();
  client.SendsDone();
  EXPECT_EQ(client.Read(), std::nullopt);
  EXPECT_EQ(ReasonOf(client.Finish()), "MALFORMED_MESSAGE");
  EXPECT_EQ(engine_->submissions(), 0);
  ExpectGoodCall();
}

// bad input: Messages | two in a call that takes one | the first is answered, gRPC never reads the
//   second
TEST_F(WireTest, ASecondMessageInACallIsNotASecondRequest) {
  Http2Peer peer(server_->address());
  ASSERT_TRUE(peer.connected());
  peer.Call(1, kGenerateMethod);
  peer.Message(1, Ask("one").SerializeAsString(), /*end_stream=*/false);
  peer.Message(1, Ask("two").SerializeAsString(), /*end_stream=*/true);
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(std::get<std::string>(call->request().prompt), "one");
  call->Start();
  call->Finish();
  EXPECT_EQ(Http2Peer::Header(peer.ReadStream(1), "grpc-status"), "0");
  EXPECT_EQ(engine_->submissions(), 1);
  ExpectGoodCall();
}

// bad input: Limits and load | the queue full | RESOURCE_EXHAUSTED with RetryInfo, before any
//   response header | BadClientTest.MoreRequestsThanFit
TEST_F(WireTest, ARefusalIsTrailersOnly) {
  Http2Peer peer(server_->address());
  ASSERT_TRUE(peer.connected());
  peer.Call(1, kGenerateMethod);
  peer.Message(1, Ask("").SerializeAsString(), /*end_stream=*/true);
  const auto frames = peer.ReadStream(1);
  ASSERT_FALSE(frames.empty());
  EXPECT_EQ(frames.front().type, Http2Peer::kHeaders);
  EXPECT_TRUE(frames.front().flags & Http2Peer::kEndStream);
}

// bad input: Deadlines and clients | a deadline already past | DEADLINE_EXCEEDED, no step runs |
//   BadClientTest.DeadlinesThatHavePassedCostNoStep
TEST_F(WireTest, ADeadlineAlreadyPastCostsTheEngineNothing) {
  Http2Peer peer(server_->address());
  ASSERT_TRUE(peer.connected());
  peer.Call(1, kGenerateMethod, {{"grpc-timeout", "1n"}});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  peer.Message(1, Ask("too late").SerializeAsString(), /*end_stream=*/true);
  EXPECT_EQ(Http2Peer::Header(peer.ReadStream(1), "grpc-status"),
            std::to_string(grpc::StatusCode::DEADLINE_EXCEEDED));
  EXPECT_EQ(engine_->submissions(), 0);
  ExpectGoodCall();
}

// Some libraries send their longest timeout for no deadline.
// bad input: Deadlines and clients | no deadline, or one over ten years off | the server's, 120 s
//   unless configured | BadClientTest.CallsWithoutADeadlineGetTheServers
TEST_F(WireTest, ADeadlineThatIsCenturiesOffIsNone) {
  for (const std::string timeout : {"2090000H", "2562048H", "99999999H"}) {
    Http2Peer peer(server_->address());
    ASSERT_TRUE(peer.connected());
    peer.Call(1, kGenerateMethod, {{"grpc-timeout", timeout}});
    peer.Message(1, Ask("no hurry").SerializeAsString(), /*end_stream=*/true);
    const auto call = engine_->TakeCall();
    ASSERT_NE(call, nullptr) << timeout;
    EXPECT_EQ(call->request().deadline, Clock::time_point::max()) << timeout;
    call->Start();
    call->Finish();
    EXPECT_EQ(Http2Peer::Header(peer.ReadStream(1), "grpc-status"), "0") << timeout;
  }
  ExpectGoodCall();
}

TEST_F(WireTest, AClientThatVanishesIsCancelled) {
  Http2Peer peer(server_->address());
  ASSERT_TRUE(peer.connected());
  for (const uint32_t stream : {1u, 3u, 5u}) {
    peer.Call(stream, kGenerateMethod);
    peer.Message(stream, Ask("hello").SerializeAsString(), /*end_stream=*/true);
  }
  std::vector<std::shared_ptr<PuppetCall>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(engine_->TakeCall());
    ASSERT_NE(calls.back(), nullptr);
    calls.back()->Start();
  }
  peer.Vanish();
  for (const auto& call : calls) {
    EXPECT_TRUE(engine_->AwaitCancel(*call));
    call->Say("into the void");
    call->Fail(absl::CancelledError("cancelled"));
  }
  ExpectGoodCall();
}

// bad input: Messages | an enum value that this build does not know | INVALID_ARGUMENT |
//   BadInputTest.EnumValuesFromTheFuture
TEST_F(WireTest, AnEnumValueFromTheFutureIsInvalid) {
  v1::GenerateRequest request = Ask("hello");
  request.set_priority(static_cast<v1::Priority>(99));
  EXPECT_EQ(FieldOf(ClientCall(*stub_).Refusal(request)), "priority");
  request.clear_priority();
  request.mutable_attention()->set_floor(static_cast<v1::Floor>(99));
  EXPECT_EQ(FieldOf(ClientCall(*stub_).Refusal(request)), "attention.floor");
  ExpectGoodCall();
}

// bad input: Messages | request id over 64 bytes or not printable | INVALID_ARGUMENT; of bytes that
//   are no UTF-8 MALFORMED_MESSAGE
TEST_F(WireTest, ARequestIdThatCannotBeEchoedIsRefused) {
  v1::GenerateRequest request = Ask("hello");
  for (const std::string& id :
       {std::string("line\nbreak"), std::string(65, 'x'), std::string("é"), std::string(" a ")}) {
    request.set_request_id(id);
    ClientCall client(*stub_);
    EXPECT_EQ(FieldOf(client.Refusal(request)), "request_id");
    EXPECT_EQ(client.Trailer("x-eta-request-id"), "");
  }
  ExpectGoodCall();
}

}  // namespace
}  // namespace eta::testing
