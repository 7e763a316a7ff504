// Spans of the shipped server, at a collector that is there, one that is not, and one behind TLS.
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/identity/certificates.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/free_port.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/process/environment.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/metric_samples.h"
#include "tests/testing/process/server_process.h"
#include "tests/testing/service/span_recorder.h"

namespace eta::testing {
namespace {

using otlp::trace::v1::Span;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr char kTracedTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kTracedParent[] = "00f067aa0ba902b7";

class TraceProcess : public ::testing::Test {
 protected:
  void Start(const std::string& endpoint, const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = {"--model",          ETA_SOURCE_DIR "/models/eta-27m",
                                      "--listen",         "127.0.0.1:0",
                                      "--metrics_listen", "127.0.0.1:0",
                                      "--otlp_endpoint",  endpoint};
    flags.insert(flags.end(), more.begin(), more.end());
    server_ = std::make_unique<ServerProcess>(ETA_BINARY_DIR "/eta-server", flags);
    const std::string url = server_->AwaitLine("metrics on ");
    metrics_port_ = std::stoi("0" + url.substr(url.rfind(':') + 1));
    const std::string address = server_->AwaitAddress();
    ASSERT_NE(address, "") << server_->AwaitExit().errors;
    stub_ =
        v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }
  // Longer than a block of the cache; an empty parent: the call comes without a trace.
  v1::Finished Answer(const std::string& parent) {
    std::string text = "secretword";
    for (int i = 0; i < 100; ++i) text += " and then";
    v1::GenerateRequest request = Ask(text);
    request.mutable_sampling()->set_temperature(0.0f);
    request.mutable_stopping()->set_max_tokens(6);
    request.mutable_stopping()->set_ignore_eos(true);
    ClientCall call(*stub_);
    if (!parent.empty()) call.context.AddMetadata("traceparent", parent);
    call.Start(request);
    call.ReadText();
    EXPECT_TRUE(call.Finish().ok());
    return call.finished;
  }
  void AskStats() {
    grpc::ClientContext context;
    v1::Stats stats;
    EXPECT_TRUE(stub_->Stats(&context, {}, &stats).ok());
  }
  std::string Stop() {
    server_->Signal(SIGTERM);
    const ServerProcess::Exit exit = server_->AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
    return exit.errors;
  }
  // As it was read last before the server was gone.
  MetricSamples LastPage() {
    MetricSamples last;
    while (true) {
      const HttpAnswer answer = HttpGet(metrics_port_, "/metrics");
      if (answer.status != 200) return last;
      last = MetricSamples(answer.body);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::unique_ptr<ServerProcess> server_;
  int metrics_port_ = 0;
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

std::string Parent(const char* flags) {
  return absl::StrCat("00-", kTracedTrace, "-", kTracedParent, "-", flags);
}

TEST_F(TraceProcess, ACallIsATreeAtTheCollectorByTheTimeTheServerHasStopped) {
  SpanRecorder recorder;
  ASSERT_NO_FATAL_FAILURE(Start(recorder.endpoint()));
  Answer(Parent("00"));
  const v1::Finished told = Answer(Parent("01"));
  EXPECT_GT(told.usage().cached_tokens(), 0) << "else this proves little";
  AskStats();
  const std::string log = Stop();

  const std::vector<Span> spans = recorder.Await(5);
  ASSERT_THAT(spans, SizeIs(5)) << "none of the call whose caller did not want them";
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name());
  EXPECT_THAT(names, ElementsAre("text_completion eta-27m", "queue", "prefill", "decode",
                                 "eta.v1.EtaService/Stats"));
  const Span& call = spans[0];
  EXPECT_EQ(Hex(call.trace_id()), kTracedTrace);
  EXPECT_EQ(Hex(call.parent_span_id()), kTracedParent);
  const auto line = LogLines(log, "call_end").at(1);
  EXPECT_EQ(line["span_id"], Hex(call.span_id())) << "the log names the span";
  uint64_t reached = call.start_time_unix_nano();
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(spans[i].trace_id(), call.trace_id());
    EXPECT_EQ(spans[i].parent_span_id(), call.span_id());
    EXPECT_EQ(spans[i].start_time_unix_nano(), reached) << spans[i].name();
    reached = spans[i].end_time_unix_nano();
    EXPECT_GT(reached, spans[i].start_time_unix_nano()) << spans[i].name();
  }
  EXPECT_LE(reached, call.end_time_unix_nano());

  const auto attributes = AttributesOf(call);
  EXPECT_THAT(
      attributes,
      AllOf(Contains(Pair("gen_ai.usage.input_tokens", absl::StrCat(told.usage().prompt_tokens()))),
            Contains(Pair("gen_ai.usage.cache_read.input_tokens",
                          absl::StrCat(told.usage().cached_tokens()))),
            Contains(Pair("gen_ai.usage.output_tokens", "6")),
            Contains(Pair("gen_ai.response.finish_reasons", "[length]")),
            Contains(Pair("eta.union_density", absl::StrCat(told.attention().union_density()))),
            Contains(Pair("eta.head_density", absl::StrCat(told.attention().head_density()))),
            Contains(Pair("eta.request_id", std::string(line["request_id"])))));
  EXPECT_EQ(spans[4].parent_span_id(), "") << "a trace that began with the call";
  EXPECT_EQ(LogLines(log, "call_end").at(2)["trace_id"], Hex(spans[4].trace_id()));

  for (const auto& batch : recorder.Batches()) {
    EXPECT_THAT(batch.SerializeAsString(), Not(HasSubstr("secretword")));
    EXPECT_THAT(batch.SerializeAsString(), Not(HasSubstr("and then")));
    EXPECT_THAT(AttributesOf(batch.resource_spans(0).resource()),
                AllOf(Contains(Pair("service.name", "eta-server")),
                      Contains(Key("service.version")), Contains(Key("service.instance.id"))));
  }
}

TEST_F(TraceProcess, WithoutItsCollectorTheServerServesAndCounts) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::StrCat("http://127.0.0.1:", FreePort())));
  Answer("");
  Answer(Parent("01"));
  server_->Signal(SIGTERM);
  const MetricSamples page = LastPage();
  const ServerProcess::Exit exit = server_->AwaitExit();
  EXPECT_EQ(exit.code, 0) << exit.errors;
  EXPECT_EQ(page.Sum("eta_trace_spans_dropped_total"), 8) << exit.errors;
  EXPECT_EQ(page.Sum("eta_trace_spans_dropped_total", {{"reason", "queue_full"}}), 0);
  EXPECT_EQ(page.Sum("eta_trace_spans_exported_total"), 0);
  EXPECT_THAT(LogLines(exit.errors, "collector_trouble"), SizeIs(1));
}

TEST_F(TraceProcess, NoSampledShareIsNoSpanWithoutACaller) {
  SpanRecorder recorder;
  ASSERT_NO_FATAL_FAILURE(Start(recorder.endpoint(), {"--otlp_sampling", "0"}));
  AskStats();
  Answer("");
  Answer(Parent("01"));
  Stop();
  EXPECT_THAT(recorder.Await(4), SizeIs(4));
}

TEST_F(TraceProcess, AnEndpointOfHttpsIsBelievedByItsCertificate) {
  const TempFolder folder;
  const CertificateAuthority authority("collectors");
  const MadeCertificate own = authority.Issue();
  grpc::SslServerCredentialsOptions tls;
  tls.pem_key_cert_pairs.push_back({.private_key = own.key, .cert_chain = own.certificate});
  SpanRecorder recorder(0, grpc::SslServerCredentials(tls));
  const std::string endpoint = absl::StrCat("https://localhost:", recorder.port());
  {
    const Environment roots("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
                            folder.Write("ca.pem", authority.pem()));
    ASSERT_NO_FATAL_FAILURE(Start(endpoint));
  }
  AskStats();
  Stop();
  EXPECT_THAT(recorder.Await(1), SizeIs(1));

  ASSERT_NO_FATAL_FAILURE(Start(endpoint));
  AskStats();
  EXPECT_THAT(LogLines(Stop(), "collector_trouble"), SizeIs(1)) << "nobody vouches for it";
  EXPECT_THAT(recorder.Await(1), SizeIs(1));
}

TEST_F(TraceProcess, DoesNotStartWithABadEndpoint) {
  for (const char* endpoint : {"localhost:4317", "http://localhost:4318/v1/traces"}) {
    ServerProcess server(ETA_BINARY_DIR "/eta-server", {"--model", ETA_SOURCE_DIR "/models/eta-27m",
                                                        "--otlp_endpoint", endpoint});
    const ServerProcess::Exit exit = server.AwaitExit();
    EXPECT_EQ(exit.code, 2) << endpoint;
    EXPECT_THAT(exit.errors, HasSubstr("--otlp_endpoint")) << endpoint;
  }
}

}  // namespace
}  // namespace eta::testing
