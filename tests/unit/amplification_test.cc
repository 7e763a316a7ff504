// No request holds over 100 times its bytes (SECURITY.md): the worst that we know to send, through
// everything that a request passes before the engine has it. The processor time of each, next to
// what its sender needs to make it, is printed, not judged: a test that judges times fails on busy
// machines.
#include <ctime>
#include <functional>
#include <iostream>
#include <string>

#include "calibration/profile_json.h"
#include "engine/request_validation.h"
#include "engine/tokenizer.h"
#include "eta/v1/calibrate.pb.h"
#include "eta/v1/generate.pb.h"
#include "eta/v1/profiles.pb.h"
#include "gtest/gtest.h"
#include "service/convert.h"
#include "service/convert_calibrate.h"
#include "service/identity/identity_file.h"
#include "service/limits/limits_file.h"
#include "service/wire_message.h"
#include "tests/testing/counted_memory.h"
#include "tests/unit/piece_file.h"
#include "tests/unit/temp_folder.h"

namespace eta {
namespace {

constexpr double kMostTimes = 100.0;
constexpr size_t kMessageBytes = size_t{1} << 20;
constexpr size_t kCalibrateBytes = size_t{2} << 20;
constexpr size_t kFileBytes = size_t{1} << 20;

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::string Repeated(const std::string& part, size_t bytes) {
  std::string whole;
  whole.reserve(bytes + part.size());
  while (whole.size() < bytes) whole += part;
  return whole;
}

// What a sender does at least: copies the bytes once. His serialiser takes several times that.
double SenderSeconds(const std::string& bytes) {
  const double begin = ProcessorSeconds();
  for (int i = 0; i < 16; ++i) {
    std::string copy = bytes;
    asm volatile("" : : "r"(copy.data()) : "memory");
  }
  return (ProcessorSeconds() - begin) / 16;
}

void ExpectModest(const std::string& name, const std::string& bytes,
                  const std::function<void(const std::string&)>& take) {
  SCOPED_TRACE(name);
  take(bytes);  // what is made once and kept is not the request's
  double seconds = 0.0;
  const int64_t peak = testing::PeakBytes([&] {
    const double begin = ProcessorSeconds();
    take(bytes);
    seconds = ProcessorSeconds() - begin;
  });
  const double times = static_cast<double>(peak) / static_cast<double>(bytes.size());
  EXPECT_LT(times, kMostTimes);
  std::cout << "[ amplified ] " << name << ": " << bytes.size() << " bytes, " << times
            << " times held, " << seconds * 1e3 << " ms, "
            << seconds * 1e9 / static_cast<double>(bytes.size()) << " ns per byte, "
            << seconds / SenderSeconds(bytes) << " times copying them\n";
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
    return *Tokenizer::Load(ReadFile(ETA_SOURCE_DIR "/models/eta-27m/tokenizer.model"), config);
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
  v1::GenerateRequest probe;
  ASSERT_TRUE(probe.ParseFromString(prompt) && probe.has_text()) << "field numbers have moved";
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
  ExpectModest("messages again and again", prompt + many(number("GenerateRequest", "sampling"), ""),
               TakeGenerate);
}

// Row 82 of the table of bad inputs.
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
      {"our sign for a space", "\xE2\x96\x81"}};
  for (const auto& [name, part] : kTexts) {
    for (const size_t bytes : {size_t{64} << 10, size_t{256} << 10, kMessageBytes - 64}) {
      ExpectModest(std::string(name) + " as text", Field(2, Repeated(part, bytes - 8)),
                   TakeGenerate);
    }
  }
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
                 [](const std::string& text) { EXPECT_FALSE(ParseLimits(text, {}).ok()); });
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
