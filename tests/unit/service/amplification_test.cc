// No request holds over 100 times its bytes (SECURITY.md): the worst that we know to send, through
// everything that a request passes before the engine has it. The processor time of each, next to
// what a client of gRPC needs to send so many bytes, is printed, not judged: a test that judges
// times fails on busy machines.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "calibration/profiles/profile_json.h"
#include "engine/front/engine.h"
#include "engine/request/request_validation.h"
#include "engine/tokenizer/tokenizer.h"
#include "eta/v1/calibrate.pb.h"
#include "eta/v1/generate.pb.h"
#include "eta/v1/profiles.grpc.pb.h"
#include "eta/v1/tokenize.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "service/calibrate/convert_calibrate.h"
#include "service/generate/convert.h"
#include "service/generate/tokenize.h"
#include "service/identity/identity_file.h"
#include "service/limits/limits_file.h"
#include "service/wire/wire_message.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/piece_file.h"
#include "tests/testing/faults/counted_memory.h"

namespace eta {
namespace {

constexpr double kMostTimes = 100.0;
constexpr size_t kMessageBytes = size_t{1} << 20;
constexpr size_t kCalibrateBytes = size_t{2} << 20;
constexpr size_t kFileBytes = size_t{1} << 20;

double ProcessorSeconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::string Repeated(const std::string& part, size_t bytes) {
  std::string whole;
  whole.reserve(bytes + part.size());
  while (whole.size() < bytes) whole += part;
  return whole;
}

class Taker final : public v1::ProfileService::Service {
  grpc::Status ImportProfile(grpc::ServerContext*, const v1::ImportProfileRequest*,
                             v1::Profile*) override {
    return grpc::Status::OK;
  }
};

// A server in a process of its own, forked before this one uses gRPC: what this process spends on
// calls is the client's alone.
class TakerProcess : public ::testing::Environment {
 public:
  static int port() { return port_; }

  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) Serve(ends[1]);
    close(ends[1]);
    EXPECT_EQ(read(ends[0], &port_, sizeof port_), ssize_t{sizeof port_});
    close(ends[0]);
  }

 private:
  [[noreturn]] static void Serve(int tell) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Taker taker;
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&taker);
    const auto server = builder.BuildAndStart();
    if (write(tell, &port, sizeof port) != ssize_t{sizeof port}) _exit(1);
    for (;;) pause();
  }

  static inline int port_ = 0;
};

::testing::Environment* const kTaker = ::testing::AddGlobalTestEnvironment(new TakerProcess);

// What a client spends on a call of so many bytes, from the text to the answer.
class Client {
 public:
  Client()
      : stub_(v1::ProfileService::NewStub(
            grpc::CreateChannel("127.0.0.1:" + std::to_string(TakerProcess::port()),
                                grpc::InsecureChannelCredentials()))) {}

  double Seconds(size_t bytes) {
    constexpr int kCalls = 16;
    const std::string text(bytes, 'a');
    double begin = 0.0;
    for (int i = -1; i < kCalls; ++i) {  // the first one connects
      if (i == 0) begin = ProcessorSeconds(CLOCK_PROCESS_CPUTIME_ID);
      v1::ImportProfileRequest request;
      request.set_json(text);
      grpc::ClientContext context;
      v1::Profile answer;
      EXPECT_TRUE(stub_->ImportProfile(&context, request, &answer).ok());
    }
    return (ProcessorSeconds(CLOCK_PROCESS_CPUTIME_ID) - begin) / kCalls;
  }

 private:
  std::unique_ptr<v1::ProfileService::Stub> stub_;
};

double ClientSeconds(size_t bytes) {
  static Client client;
  static std::map<size_t, double> known;
  const auto [entry, first] = known.emplace(bytes, 0.0);
  if (first) entry->second = client.Seconds(bytes);
  return entry->second;
}

void ExpectModest(const std::string& name, const std::string& bytes,
                  const std::function<void(const std::string&)>& take) {
  SCOPED_TRACE(name);
  take(bytes);  // what is made once and kept is not the request's
  double seconds = 0.0;
  const int64_t peak = testing::PeakBytes([&] {
    const double begin = ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID);
    take(bytes);
    seconds = ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID) - begin;
  });
  const double times = static_cast<double>(peak) / static_cast<double>(bytes.size());
  EXPECT_LT(times, kMostTimes);
  std::cout << "[ amplified ] " << name << ": " << bytes.size() << " bytes, " << times
            << " times held, " << seconds * 1e3 << " ms, "
            << seconds * 1e9 / static_cast<double>(bytes.size()) << " ns per byte, "
            << seconds / ClientSeconds(bytes.size()) << " times its client's "
            << ClientSeconds(bytes.size()) * 1e3 << " ms\n";
}

EngineInfo Model() {
  EngineInfo info{};
  info.block_size = 16;
  info.config.vocab_size = 8192;
  info.config.has_predictor = true;
  info.config.gate = Gate::kSilu;
  return info;
}

const Tokenizer& ModelsTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    ModelConfig config;
    config.vocab_size = 8192;
    return *Tokenizer::Load(
        {.sentencepiece_model = ReadFile(ETA_SOURCE_DIR "/models/eta-27m/tokenizer.model")},
        config);
  }();
  return *tokenizer;
}

grpc::ByteBuffer Sent(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

// As GenerateReactor and the engine take a call, up to the queue.
void TakeGenerate(const std::string& bytes) {
  const auto message = ParseMessage<v1::GenerateRequest>(Sent(bytes), kMessageBytes + 16);
  if (!message.ok()) return;
  auto request = ToRequest(*message);
  if (!request.ok()) return;
  if (request->id.empty()) request->id = "drawn";
  Limits limits;
  limits.max_prompt_bytes = kMessageBytes;
  if (!ValidateRequest(*request, Model(), limits).ok()) return;
  if (const auto* text = std::get_if<std::string>(&request->prompt)) {
    const auto ids = ModelsTokenizer().Encode(*text, true);
    ASSERT_TRUE(ids.ok());
  }
}

std::string Field(uint32_t number, const std::string& bytes) {
  return ProtoBytes(number, bytes);
}

TEST(Amplification, Generate) {
  const std::string prompt = Field(2, "hello");
  v1::GenerateRequest pass;
  ASSERT_TRUE(pass.ParseFromString(prompt) && pass.has_text()) << "field numbers have moved";
  const auto number = [](const char* message, const char* field) {
    const auto* descriptor =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
            std::string("eta.v1.") + message);
    return static_cast<uint32_t>(descriptor->FindFieldByName(field)->number());
  };
  const auto in = [&](const char* field, const std::string& bytes) {
    return prompt + Field(number("GenerateRequest", field), bytes);
  };
  const auto many = [](uint32_t field, const std::string& bytes) {
    return Repeated(Field(field, bytes), kMessageBytes - 64);
  };
  ExpectModest("empty stop strings",
               in("stopping", many(number("StoppingCriteria", "stop_strings"), "")), TakeGenerate);
  ExpectModest("stop strings of a byte",
               in("stopping", many(number("StoppingCriteria", "stop_strings"), "a")), TakeGenerate);
  ExpectModest("empty biases", in("sampling", many(number("SamplingParams", "logit_bias"), "")),
               TakeGenerate);
  ExpectModest("packed ids",
               Field(number("GenerateRequest", "token_ids"),
                     Field(number("TokenIds", "ids"), std::string(kMessageBytes - 64, '\x05'))),
               TakeGenerate);
  ExpectModest("single ids",
               Field(number("GenerateRequest", "token_ids"),
                     Repeated(ProtoNumber(number("TokenIds", "ids"), 5), kMessageBytes - 64)),
               TakeGenerate);
  ExpectModest("unknown numbers", prompt + Repeated(ProtoNumber(15, 0), kMessageBytes - 64),
               TakeGenerate);
  ExpectModest("unknown empty texts", prompt + many(15, ""), TakeGenerate);
  ExpectModest("unknown empty groups", prompt + Repeated("\x7b\x7c", kMessageBytes - 64),
               TakeGenerate);
  ExpectModest("the prompt again and again", Repeated(prompt, kMessageBytes - 64), TakeGenerate);
  const auto chat = [&](const std::string& bytes) {
    return Field(number("GenerateRequest", "chat"), bytes);
  };
  ExpectModest("empty messages", chat(many(number("Chat", "messages"), "")), TakeGenerate);
  ExpectModest("messages of a role", chat(many(number("Chat", "messages"), "\x08\x02")),
               TakeGenerate);
  const std::string parts =
      Field(number("ChatMessage", "parts"), many(number("ContentParts", "items"), ""));
  ExpectModest(
      "empty calls",
      chat(Field(number("Chat", "messages"), many(number("ChatMessage", "tool_calls"), ""))),
      TakeGenerate);
  ExpectModest("empty tools", chat(many(number("Chat", "tools"), "")), TakeGenerate);
  ExpectModest("empty parts", chat(Field(number("Chat", "messages"), parts)), TakeGenerate);
  for (const char* part : {"[],", "{},", "1,", "\"\","}) {
    const std::string list = "{\"a\":[" + Repeated(part, (size_t{64} << 10) - 64) + "1]}";
    ExpectModest(std::string("variables of ") + part,
                 chat(Field(number("Chat", "messages"), "\x08\x02\x12\x01x") +
                      Field(number("Chat", "variables"), list)),
                 TakeGenerate);
  }
  ExpectModest("messages again and again", prompt + many(number("GenerateRequest", "sampling"), ""),
               TakeGenerate);
}

// So that every merge is another one.
std::string RandomWords() {
  std::mt19937 random(1);
  std::string words;
  while (words.size() < 4096) {
    words += random() % 6 == 0 ? ' ' : static_cast<char>('a' + random() % 26);
  }
  return words;
}

TEST(Amplification, WorstTexts) {
  const std::pair<const char*, std::string> kTexts[] = {
      {"one letter", "a"},
      {"spaces", " "},
      {"combining marks", "\xCC\x81"},
      {"letter and mark", "e\xCC\x81"},
      {"newlines", "\n"},
      {"NULs", std::string(1, '\0')},
      {"four-byte characters", "\xF0\x9F\x98\x80"},
      {"the and a space", "the "},
      {"digits", "1"},
      {"random words", RandomWords()},
      {"our sign for a space", "\xE2\x96\x81"}};
  for (const auto& [name, part] : kTexts) {
    for (const size_t bytes : {size_t{64} << 10, size_t{256} << 10, kMessageBytes - 64}) {
      ExpectModest(std::string(name) + " as text",
                   Field(2, Repeated(part, bytes - 8 - part.size())), TakeGenerate);
    }
  }
}

// Whose context has room for a text of a token for each byte.
const Engine& RoomyEngine() {
  static const testing::TinyModel model;
  static const std::unique_ptr<Engine> engine = [] {
    EngineOptions options = testing::OptionsFor(model);
    options.limits.max_context = int32_t{kMessageBytes} + 16;
    options.limits.max_prompt_bytes = kMessageBytes;
    return testing::Start(options);
  }();
  return *engine;
}

// As UnaryCall takes and answers a call. gRPC's memory is not counted, so that a string stands for
// the answer's buffer.
template <typename Message, typename Answer>
std::function<void(const std::string&)> TakeUnary(Answer (*answer)(const Message&, const Engine&),
                                                  size_t least_answer) {
  return [=](const std::string& bytes) {
    const auto message = ParseMessage<Message>(Sent(bytes), kMessageBytes + 16);
    ASSERT_TRUE(message.ok()) << message.status();
    const auto response = answer(*message, RoomyEngine());
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_GT(response->SerializeAsString().size(), least_answer);
  };
}

// Each byte is a token with a text, an end and a mark of its own.
TEST(Amplification, TokensWithTheirTexts) {
  constexpr size_t kBytes = kMessageBytes - 64;
  for (const char byte : {'\x01', '\n', '0'}) {
    v1::TokenizeRequest request;
    request.set_text(std::string(kBytes, byte));
    request.set_token_texts(true);
    ExpectModest("tokens of a text of " + std::to_string(byte), request.SerializeAsString(),
                 TakeUnary(&Tokenize, 5 * kBytes));
  }
}

// Each token is a byte on the wire, and one of text.
TEST(Amplification, TextsOfTokens) {
  constexpr int kTokens = int{kMessageBytes} - 64;
  constexpr int32_t kByteZero = 3;
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->mutable_ids()->Resize(kTokens, kByteZero);
  request.set_token_texts(true);
  ExpectModest("texts of tokens", request.SerializeAsString(),
               TakeUnary(&Detokenize, size_t{5} * kTokens));
}

void TakeCalibrate(const std::string& bytes) {
  const auto message = ParseMessage<v1::CalibrateRequest>(Sent(bytes), kCalibrateBytes + 64);
  if (!message.ok()) return;
  const auto plan = ToCalibration(*message, Model(), Limits(), 262'144);
  EXPECT_FALSE(plan.ok());
}

TEST(Amplification, Calibrate) {
  const auto number = [](const char* field) {
    return static_cast<uint32_t>(
        v1::CalibrateRequest::descriptor()->FindFieldByName(field)->number());
  };
  const std::string name = Field(number("name"), "legal");
  ExpectModest("empty samples", name + Repeated(Field(number("samples"), ""), kCalibrateBytes - 64),
               TakeCalibrate);
  ExpectModest("samples of an empty list",
               name + Repeated(Field(number("samples"), Field(2, "")), kCalibrateBytes - 64),
               TakeCalibrate);
  std::string labels = name;
  for (int i = 0; labels.size() < kCalibrateBytes - 64; ++i) {
    labels += Field(number("labels"), Field(1, std::to_string(i)));
  }
  ExpectModest("labels", labels, TakeCalibrate);
}

TEST(Amplification, TooManyLabelsAreCountedAndNotCopied) {
  v1::CalibrateRequest request;
  request.set_name("legal");
  for (int i = 0; i < 100'000; ++i) (*request.mutable_labels())[std::to_string(i)] = "x";
  absl::Status status;
  const int64_t peak = testing::PeakBytes(
      [&] { status = ToCalibration(request, Model(), Limits(), 262'144).status(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "labels: must be at most 16");
  EXPECT_LT(peak, 16 << 10);
}

void TakeImport(const std::string& bytes) {
  const auto message = ParseMessage<v1::ImportProfileRequest>(Sent(bytes), kFileBytes + 1024);
  if (!message.ok()) return;
  EXPECT_FALSE(ProfileFromJson(message->json()).ok());
}

std::string Json(const std::string& open, const std::string& part, const std::string& close) {
  std::string text = open + Repeated(part + ",", kFileBytes - 64);
  text.back() = ' ';
  return text + close;
}

TEST(Amplification, JsonOfProfilesAndOfOperatorsFiles) {
  const std::pair<const char*, std::string> kParts[] = {{"numbers", "0"},
                                                        {"lists", "[]"},
                                                        {"objects", "{}"},
                                                        {"texts", "\"\""},
                                                        {"objects of a field", "{\"a\":0}"}};
  for (const auto& [name, part] : kParts) {
    const std::string list = Json("{\"thresholds\":[", part, "]}");
    ExpectModest(std::string("profile: ") + name, Field(1, list), TakeImport);
    ExpectModest(std::string("tenants file: ") + name, list,
                 [](const std::string& text) { EXPECT_FALSE(ParseLimits(text).ok()); });
    ExpectModest(std::string("identity file: ") + name, list,
                 [](const std::string& text) { EXPECT_FALSE(ParseIdentityFile(text).ok()); });
  }
  std::string keys = "{\"labels\":{";
  for (int i = 0; keys.size() < kFileBytes - 64; ++i) {
    keys += "\"" + std::to_string(i) + "\":0,";
  }
  keys.back() = '}';
  keys += "}";
  ExpectModest("profile: keys", Field(1, keys), TakeImport);
}

}  // namespace
}  // namespace eta
