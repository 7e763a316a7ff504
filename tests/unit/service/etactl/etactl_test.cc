// What a user of etactl sees: requests made of flags, errors, exit codes, statistics.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "service/etactl/calibrate/calibrate_call.h"
#include "service/etactl/commands/tokenize.h"
#include "service/etactl/error.h"
#include "service/etactl/generate/answer_display.h"
#include "service/etactl/generate/request.h"
#include "service/etactl/view/terminal.h"
#include "tests/testing/base/text_proto.h"

namespace eta::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<v1::GenerateRequest> RequestOf(std::vector<std::string> arguments) {
  GenerateFlags flags;
  CLI::App app;
  AddGenerateCommand(app, &flags);
  arguments.insert(arguments.begin(), "generate");
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return MakeGenerateRequest(flags);
}

grpc::Status Refusal(grpc::StatusCode code,
                     const std::vector<const google::protobuf::Message*>& all) {
  google::rpc::Status rich;
  for (const google::protobuf::Message* detail : all) rich.add_details()->PackFrom(*detail);
  return {code, "sentence", rich.SerializeAsString()};
}

TEST(EtactlRequest, LeavesWhatWasNotGivenToTheServer) {
  const auto request = RequestOf({"Once"}).value();
  EXPECT_EQ(request.text(), "Once");
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.stopping().has_max_tokens());
  EXPECT_EQ(request.attention().mode_case(), v1::Attention::MODE_NOT_SET);
  EXPECT_FALSE(request.attention().has_z());
  EXPECT_EQ(request.priority(), v1::PRIORITY_UNSPECIFIED);
  EXPECT_EQ(request.speculation(), v1::SPECULATION_UNSPECIFIED);
}

TEST(EtactlRequest, SaysWhereDraftsComeFrom) {
  const auto of = [](const char* value) {
    return RequestOf({"Once", "--speculation", value}).value().speculation();
  };
  EXPECT_EQ(of("off"), v1::SPECULATION_OFF);
  EXPECT_EQ(of("prompt"), v1::SPECULATION_PROMPT);
  EXPECT_EQ(of("self"), v1::SPECULATION_SELF);
  EXPECT_EQ(of("auto"), v1::SPECULATION_AUTO);
}

TEST(EtactlRequest, ReadsSpecialTokensOnlyWhereThatIsSaid) {
  EXPECT_FALSE(RequestOf({"Once</s>"}).value().has_parse_special());
  const auto parsed = RequestOf({"--parse_special", "Once</s>"}).value();
  EXPECT_TRUE(parsed.parse_special());
  EXPECT_EQ(parsed.text(), "Once</s>");
}

TEST(EtactlRequest, SendsZerosThatWereGiven) {
  const auto request = RequestOf({"Once", "--temperature", "0", "--seed", "0", "--offset", "-1.5"});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->sampling().has_temperature());
  EXPECT_EQ(request->sampling().temperature(), 0.0f);
  EXPECT_TRUE(request->sampling().has_seed());
  EXPECT_EQ(request->attention().offset(), -1.5f);
}

TEST(EtactlTokenize, AsksForATextOrAChat) {
  const auto request_of = [](std::vector<std::string> arguments) {
    TokenizeFlags flags;
    CLI::App app;
    AddTokenizeCommand(app, &flags);
    arguments.insert(arguments.begin(), "tokenize");
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
    return MakeTokenizeRequest(flags);
  };
  const auto plain = request_of({"Once"}).value();
  EXPECT_EQ(plain.text(), "Once");
  EXPECT_FALSE(plain.has_add_beginning() || plain.has_parse_special() || plain.has_token_texts());
  const auto bare = request_of({"Once", "--no_beginning", "--parse_special", "--pieces"});
  EXPECT_TRUE(bare->has_add_beginning());
  EXPECT_FALSE(bare->add_beginning());
  EXPECT_TRUE(bare->parse_special() && bare->token_texts());
  const std::string file = testing::TempDir() + "/etactl_chat.jsonl";
  std::ofstream(file) << R"({"role": "tool", "content": "12 C", "tool_call_id": "7"})"
                      << "\n";
  const auto chat = request_of({"--history", file, "--variables", "{}"}).value();
  EXPECT_EQ(chat.chat().messages(0).tool_call_id(), "7");
  EXPECT_EQ(chat.chat().variables(), "{}");
  EXPECT_FALSE(request_of({"Once", "--history", file}).ok());
  std::remove(file.c_str());
}

TEST(EtactlTokenize, ShowsWhatEachTokenReadsAs) {
  google::protobuf::RepeatedField<int32_t> ids;
  ids.Add(2);
  ids.Add(198);
  v1::TokenTexts texts;
  texts.set_text("</s> \"\n\xC3");
  texts.add_ends(4);
  texts.add_ends(8);
  texts.add_special(true);
  texts.add_special(false);
  EXPECT_EQ(DescribePieces(ids, texts), "2\t\"</s>\"\tspecial\n198\t\" \\\"\\n\\xc3\"\n");
  texts.set_ends(1, 9);
  EXPECT_EQ(DescribePieces(ids, texts), "2\t\"</s>\"\tspecial\n") << "of a server that errs";
}

TEST(EtactlRequest, TakesStopStringsAsTheyAre) {
  const auto request = RequestOf({"--stop", "[a,b]", "--stop", ",", "--stop", "\n", "Once"});
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& stops = request->stopping().stop_strings();
  EXPECT_EQ(std::vector<std::string>(stops.begin(), stops.end()),
            (std::vector<std::string>{"[a,b]", ",", "\n"}));
  EXPECT_EQ(request->text(), "Once");
}

TEST(EtactlRequest, BindsTheAnswerToOneFormat) {
  const std::string file = testing::TempDir() + "/etactl_format.txt";
  std::ofstream(file) << "{}\n";
  EXPECT_FALSE(RequestOf({"x"})->has_format());
  EXPECT_EQ(RequestOf({"x", "--json_schema", file})->format().json_schema(), "{}\n");
  EXPECT_EQ(RequestOf({"x", "--grammar", file})->format().grammar(), "{}\n");
  EXPECT_TRUE(RequestOf({"x", "--json_object"})->format().has_json_object());
  EXPECT_EQ(RequestOf({"x", "--regex", "[a,b]+"})->format().regex(), "[a,b]+");
  EXPECT_TRUE(RequestOf({"x", "--regex", ""})->format().has_regex()) << "the server refuses it";
  const auto choices = RequestOf({"--choice", "yes", "--choice", "[no,\n", "x"}).value();
  EXPECT_THAT(choices.format(), ReadsAs("choice { choices: 'yes' choices: '[no,\\n' }"));
  EXPECT_EQ(choices.text(), "x");
  EXPECT_THAT(std::string(RequestOf({"x", "--json_object", "--regex", "a"}).status().message()),
              HasSubstr("--json_schema, --json_object, --regex, --grammar and --choice"));
  EXPECT_FALSE(RequestOf({"x", "--json_schema", file + ".not"}).ok());
  std::remove(file.c_str());
}

TEST(EtactlAnswer, SaysThatItWasCutOffAlsoToAProgram) {
  for (const bool quiet : {false, true}) {
    GenerateFlags flags;
    flags.quiet = quiet;
    AnswerDisplay display(flags);
    ::testing::internal::CaptureStderr();
    display.Show(
        FromText<v1::GenerateResponse>("finished { finish_reason: FINISH_REASON_CUT_OFF }"));
    display.End();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("cut off: --max_tokens"));
  }
}

TEST(EtactlAnswer, ShowsDensitiesByLayerAndWhichHaveAWindow) {
  AnswerDisplay display(GenerateFlags{});
  ::testing::internal::CaptureStderr();
  display.Show(
      FromText<v1::GenerateResponse>("finished { attention { layers {} layers { head_density: 0.25 "
                                     "union_density: 0.5 } } }"));
  display.End();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("layer  0: has a window\n"
                        "layer  1: head density 0.250, union density 0.500\n"));
}

TEST(EtactlRequest, ReadsTokenIdsFromAListOrAFile) {
  const std::string file = testing::TempDir() + "/etactl_ids.json";
  std::ofstream(file) << "[5, 6,\n 7]\n";
  for (const std::string& source : {std::string("5,6,7"), file}) {
    const auto request = RequestOf({"--token_ids", source}).value();
    const auto& ids = request.token_ids().ids();
    EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.end()), (std::vector<int32_t>{5, 6, 7}));
  }
  std::remove(file.c_str());
}

TEST(EtactlRequest, KeepsEveryByteOfAPromptFile) {
  const std::string file = testing::TempDir() + "/etactl_prompt.bin";
  const std::string bytes("a\0\r\n\xFF b", 7);
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_EQ(RequestOf({"--file", file}).value().text(), bytes);
  std::remove(file.c_str());
}

TEST(EtactlRequest, ChoosesAttention) {
  EXPECT_TRUE(RequestOf({"x", "--attention", "full"})->attention().has_full());
  EXPECT_TRUE(RequestOf({"x", "--attention=dynamic"})->attention().has_dynamic());
  for (const char* reference : {"tight", "tight@3", "tight@stable"}) {
    const auto request = RequestOf({"x", std::string("--attention=profile:") + reference});
    EXPECT_EQ(request->attention().profile(), reference);
  }
}

TEST(EtactlRequest, RefusesWhatItCannotUnderstand) {
  EXPECT_FALSE(RequestOf({"x", "--attention", "half"}).ok());
  const auto options = RequestOf({"x", "--sink_blocks=2", "--reads=shared", "--special_keys=temper",
                                  "--min_mass=0.9", "--confirm=true", "--prefill=sparse",
                                  "--begin=full_where_recent_mass_was_low"});
  EXPECT_EQ(options->attention().sink_blocks(), 2);
  EXPECT_EQ(options->attention().reads(), v1::READS_SHARED);
  EXPECT_EQ(options->attention().special_keys(), v1::SPECIAL_KEYS_TEMPER);
  EXPECT_EQ(options->attention().min_mass(), 0.9f);
  EXPECT_EQ(options->attention().begin(), v1::BEGIN_FULL_WHERE_RECENT_MASS_WAS_LOW);
  EXPECT_EQ(RequestOf({"x", "--begin=full"})->attention().begin(), v1::BEGIN_FULL);
  EXPECT_EQ(RequestOf({"x", "--begin=as_asked"})->attention().begin(), v1::BEGIN_AS_ASKED);
  EXPECT_TRUE(options->attention().confirm());
  EXPECT_EQ(options->attention().prefill(), v1::PREFILL_SPARSE);
  const auto usual =
      RequestOf({"x", "--reads=own", "--special_keys=attend", "--confirm=false", "--prefill=full"});
  EXPECT_EQ(usual->attention().prefill(), v1::PREFILL_FULL);
  EXPECT_TRUE(usual->attention().has_confirm());
  EXPECT_FALSE(usual->attention().confirm());
  EXPECT_EQ(usual->attention().reads(), v1::READS_OWN);
  EXPECT_EQ(usual->attention().special_keys(), v1::SPECIAL_KEYS_ATTEND);
  EXPECT_FALSE(usual->attention().has_sink_blocks() || usual->attention().has_min_mass());
  EXPECT_FALSE(RequestOf({"x", "--logit_bias", "3"}).ok());
  EXPECT_FALSE(RequestOf({"x", "--logit_bias", "three=1"}).ok());
  EXPECT_FALSE(RequestOf({"--token_ids", "1,99999999999"}).ok());
  EXPECT_FALSE(RequestOf({"x", "--token_ids", "1"}).ok());
  EXPECT_FALSE(RequestOf({"--file", "/nonexistent/prompt.txt"}).ok());
  EXPECT_FALSE(RequestOf({"--file", testing::TempDir()}).ok());
  EXPECT_THROW((void)RequestOf({"x", "--floor", "flat"}), CLI::ParseError);
  EXPECT_THROW((void)RequestOf({"x", "--logprobs", "3"}), CLI::ParseError);
}

TEST(EtactlError, NamesCodeReasonFieldAndWhenToRetry) {
  google::rpc::ErrorInfo info;
  info.set_reason("QUEUE_FULL");
  google::rpc::BadRequest bad;
  bad.add_field_violations()->set_field("sampling.top_p");
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_nanos(500'000'000);
  EXPECT_EQ(DescribeError(Refusal(grpc::RESOURCE_EXHAUSTED, {&info, &bad, &retry})),
            "RESOURCE_EXHAUSTED: sentence [reason QUEUE_FULL, field sampling.top_p, "
            "retry in 0.50 s]");
  EXPECT_EQ(DescribeError(grpc::Status(grpc::UNAVAILABLE, "nobody there")),
            "UNAVAILABLE: nobody there");
}

TEST(EtactlError, SaysWhatToLookAtWhereTlsWasInTheWay) {
  const auto described = [](grpc::StatusCode code, const std::string& message) {
    return DescribeError(grpc::Status(code, message));
  };
  const std::string failed = "failed to connect to all addresses; last error: ";
  for (const auto& [error, advice] : std::vector<std::pair<std::string, std::string>>{
           {"SSL routines::certificate verify failed",
            " (the server's certificate is of no root in --tls_ca, or has expired)"},
           {"SSL routines::wrong version number",
            " (the server speaks no TLS there: leave out --tls_ca)"},
           {"recvmsg:Connection reset by peer",
            " (the server hung up: it may demand TLS (--tls_ca), or a valid certificate of yours "
            "(--tls_cert, --tls_key))"},
           {"Connection refused", ""}}) {
    EXPECT_EQ(described(grpc::UNAVAILABLE, failed + error),
              "UNAVAILABLE: " + failed + error + advice);
  }
  EXPECT_EQ(described(grpc::UNAVAILABLE, "Socket closed"), "UNAVAILABLE: Socket closed")
      << "of a call that had begun";
  EXPECT_EQ(described(grpc::INTERNAL, failed + "Socket closed"),
            "INTERNAL: " + failed + "Socket closed");
}

TEST(EtactlCalibrateCall, ComesBackAfterWhatMayPass) {
  google::rpc::ErrorInfo info;
  const auto may = [&](grpc::StatusCode code, const char* reason) {
    info.set_reason(reason);
    return MayComeBack(*reason == 0 ? grpc::Status(code, "x") : Refusal(code, {&info}));
  };
  EXPECT_TRUE(may(grpc::UNAVAILABLE, ""));  // the connection
  EXPECT_TRUE(may(grpc::UNAVAILABLE, "DRAINING"));
  EXPECT_TRUE(may(grpc::INTERNAL, "")) << "a proxy reset the stream";
  EXPECT_TRUE(may(grpc::CANCELLED, ""));
  EXPECT_TRUE(may(grpc::ABORTED, "REQUEST_IN_PROGRESS"));
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  info.set_reason("TENANT_CALLS");
  EXPECT_TRUE(MayComeBack(Refusal(grpc::RESOURCE_EXHAUSTED, {&info, &retry})))
      << "the place of the call that broke off";
  EXPECT_FALSE(may(grpc::RESOURCE_EXHAUSTED, "PROFILE_QUOTA"));
  EXPECT_FALSE(may(grpc::UNAVAILABLE, "DEVICE_ERROR"));
  EXPECT_FALSE(may(grpc::INTERNAL, "INTERNAL_ERROR"));
  EXPECT_FALSE(may(grpc::ABORTED, "VERSION_MISMATCH"));
  EXPECT_FALSE(may(grpc::FAILED_PRECONDITION, "PROFILE_LOSES"));
  EXPECT_FALSE(may(grpc::DEADLINE_EXCEEDED, ""));
  EXPECT_FALSE(may(grpc::OK, ""));
}

TEST(EtactlError, ExitCodesTellWhoMustAct) {
  google::rpc::ErrorInfo device;
  device.set_reason("DEVICE_ERROR");
  EXPECT_EQ(ExitCodeOf(Refusal(grpc::UNAVAILABLE, {&device})), 6);
  const std::map<int, std::vector<grpc::StatusCode>> exits = {
      {0, {grpc::OK}},
      {3, {grpc::UNAVAILABLE}},
      {4, {grpc::INVALID_ARGUMENT, grpc::NOT_FOUND, grpc::ALREADY_EXISTS, grpc::ABORTED}},
      {5, {grpc::RESOURCE_EXHAUSTED, grpc::DEADLINE_EXCEEDED}},
      {6, {grpc::DATA_LOSS, grpc::INTERNAL}}};
  for (const auto& [wanted, codes] : exits) {
    for (const auto code : codes) EXPECT_EQ(ExitCodeOf({code, ""}), wanted) << code;
  }
}

TEST(EtactlStatistics, SayWhatIsKnownAndLeaveOutTheRest) {
  struct Case {
    std::string started, finished;
    std::vector<const char*> told, untold;
  };
  const std::string steps = "attention { fallback_steps: 78 fallback_kv_bytes_read: 2048 }";
  const std::string miss =
      "attention { mode: ATTENTION_MODE_DYNAMIC default_profile_miss: DEFAULT_PROFILE_MISS_";
  const std::vector<Case> cases = {
      {"attention { mode: ATTENTION_MODE_DYNAMIC }",
       "usage { output_tokens: 3 } timing { decode { nanos: 500000000 } } attention { "
       "head_density: 0.16 union_density: 0.29 kv_bytes_read: 29000000 kv_bytes_dense: 100000000 }",
       {"3 tokens", "4.0 tok/s", "dynamic thresholds", "head density 0.160", "union density 0.290",
        "KV read 29.0 MB of 100.0 MB (29.0 %)"},
       {"default profile"}},
      {"attention { mode: ATTENTION_MODE_DYNAMIC }",
       "usage { output_tokens: 3 } timing { decode { nanos: 500000000 } }",
       {},
       {"density", "drafted"}},
      {"",
       "drafts { drafted: 180 accepted: 120 steps_saved: 118 }",
       {"120 of 180 drafted tokens right, 118 steps saved"},
       {}},
      {"attention { mode: ATTENTION_MODE_DYNAMIC special_keys: SPECIAL_KEYS_ATTEND sink_blocks: 0 "
       "reads: READS_OWN }",
       "",
       {},
       {"sink", "shared", "special", "confirmed", "prefill", "mass", "default profile"}},
      {"attention { mode: ATTENTION_MODE_DYNAMIC relative_threshold: -3.9 sink_blocks: 1 reads: "
       "READS_SHARED special_keys: SPECIAL_KEYS_TEMPER min_mass: 0.9 confirm: true prefill: "
       "PREFILL_SPARSE }",
       "",
       {"relative thresholds of -3.9", "sink_blocks 1", "reads shared", "confirm true",
        "prefill sparse", "special_keys temper", "min_mass 0.9"},
       {}},
      {"",
       "full_from: 122 " + steps,
       {"full attention from token 122 on, for want of mass", "78 steps with it read 2.0 kB"},
       {}},
      {"attention { begin: BEGIN_FULL }", "full_from: 0 " + steps, {}, {"for want of mass"}},
      {"attention { mode: ATTENTION_MODE_PROFILE profile: 'legal' profile_version: 3 }",
       "",
       {"profile legal@3"},
       {}},
      {"attention { profile_differences { what: 'kv_dtype' profile: 'float16' served: "
       "'float8_e4m3' } }",
       "",
       {"calibrated with kv_dtype float16, served with float8_e4m3"},
       {}},
      {"rope_factor: 1", "", {}, {"RoPE"}},
      {"rope_factor: 1.25", "", {"RoPE factor 1.25"}, {}},
      {miss + "ABSENT }", "", {"no default profile: the tenant has none"}, {}},
      {miss + "UNFIT }", "", {"no default profile: it is of another model"}, {}},
      {miss + "UNAVAILABLE }",
       "",
       {"no default profile: the profile store could not give it"},
       {}}};
  for (const Case& c : cases) {
    const std::string line =
        DescribeStatistics(FromText<v1::Started>(c.started), FromText<v1::Finished>(c.finished));
    for (const char* part : c.told) EXPECT_THAT(line, HasSubstr(part));
    for (const char* part : c.untold) EXPECT_THAT(line, Not(HasSubstr(part)));
  }
}

TEST(EtactlTerminal, GeneratedTextCannotCommandTheTerminal) {
  EXPECT_EQ(WithoutControls("a\x1B[31mb\n\tc\x7F"), "a\xEF\xBF\xBD[31mb\n\tc\xEF\xBF\xBD");
  EXPECT_EQ(WithoutControls("\xC2\x9B"
                            "2J"),
            "\xEF\xBF\xBD"
            "2J");
  EXPECT_EQ(WithoutControls("Gr\xC3\xB6\xC3\x9F"
                            "e \xE2\x82\xAC"),
            "Gr\xC3\xB6\xC3\x9F"
            "e \xE2\x82\xAC");
}

}  // namespace
}  // namespace eta::ctl
