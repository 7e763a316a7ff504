// What of the command line is told to whoever reads the log.
#include "service/options/flags.h"

#include <sys/stat.h>

#include <cmath>

#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/identity/access_files.h"

namespace eta {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

ParsedFlags Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"eta-server", "--model", ETA_SOURCE_DIR});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return ParseFlags(static_cast<int>(argv.size()), argv.data());
}

TEST(Flags, WhatWasGivenIsToldWithoutPasswords) {
  const ParsedFlags parsed =
      Parse({"--device", "0,1", "--reflection", "--profile_store",
             "postgresql://eta:s3cret@db/eta?password=s3cret", "--log_level=warning"});
  ASSERT_TRUE(parsed.flags.has_value());
  EXPECT_THAT(parsed.flags->given,
              ElementsAre(Pair("device", "0,1"), Pair("log_level", "warning"),
                          Pair("model", ETA_SOURCE_DIR), Pair("profile_store", "postgresql://..."),
                          Pair("reflection", "true")));
}

// What is said of flags that end the server with exit code 2.
std::string Refusal(const std::vector<std::string>& arguments) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Parse(arguments).exit_code, 2);
  return ::testing::internal::GetCapturedStderr();
}

// bad input: Server | a flag or argument that does not exist | exit code 2; the word named that is
//   wrong
TEST(Flags, NamesTheWordThatIsWrong) {
  EXPECT_EQ(Refusal({"--max-runing", "4", "--threads", "2"}),
            "eta-server: --max-runing: no such option; did you mean --max_running? (see eta-server "
            "--help)\n");
  EXPECT_EQ(Refusal({"--xyz=3"}), "eta-server: --xyz: no such option (see eta-server --help)\n");
  EXPECT_THAT(Refusal({"4", "--threads", "2"}), StartsWith("eta-server: 4: one argument too many"));
  EXPECT_THAT(Refusal({"--threads", "many"}), HasSubstr("--threads"));
  EXPECT_THAT(Refusal({"--index", "mean"}), HasSubstr("--index"));
}

TEST(Flags, AStoresAddressMayComeFromAFileAndIsNotTold) {
  const TempFolder folder;
  const std::string file = testing::WriteSecret(folder, "url", "postgresql://eta:s3cret@db/eta\n");
  ParsedFlags parsed = Parse({"--profile_store_file", file});
  ASSERT_TRUE(parsed.flags.has_value());
  EXPECT_EQ(parsed.flags->profile_store, "") << "read once the process is hardened";
  EXPECT_TRUE(ReadSecrets(*parsed.flags).ok());
  EXPECT_EQ(parsed.flags->profile_store, "postgresql://eta:s3cret@db/eta");
  EXPECT_THAT(parsed.flags->given, Contains(Pair("profile_store_file", file)));
  EXPECT_FALSE(parsed.flags->shows_password);

  EXPECT_FALSE(Parse({"--profile_store_file", file, "--profile_store", "x.db"}).flags.has_value());
  const auto error = [](const std::string& path) {
    Flags flags = *Parse({"--profile_store_file", path}).flags;
    return std::string(ReadSecrets(flags).message());
  };
  EXPECT_THAT(error(file + "2"), StartsWith("--profile_store_file: ")) << "no such file";
  for (const char* text : {"", "\n", "two\nlines"}) {
    EXPECT_EQ(error(testing::WriteSecret(folder, "bad", text)),
              "--profile_store_file: must hold one line");
  }
  chmod(file.c_str(), 0440);
  EXPECT_EQ(error(file), "") << "as Kubernetes mounts it";
  chmod(file.c_str(), 0444);
  EXPECT_EQ(error(file), "--profile_store_file: every user of this host may read it");
  chmod(file.c_str(), 0602);
  EXPECT_EQ(error(file), "--profile_store_file: every user of this host may change it");
}

// bad input: Chat templates | --chat_template absent, a folder, over 1 MiB, writable by all, not
//   understood | exit code 2, the flag named | BadChatTemplate.OfTheFlagIsABadStart
TEST(Flags, AChatTemplateIsReadFromItsFile) {
  const TempFolder folder;
  const std::string file = folder.Write("chat.jinja", "{{ messages }}\n");
  ParsedFlags parsed = Parse({"--chat_template", file});
  ASSERT_TRUE(parsed.flags.has_value());
  EXPECT_FALSE(parsed.flags->engine.chat_template.has_value());
  EXPECT_TRUE(ReadChatTemplate(*parsed.flags).ok());
  EXPECT_EQ(parsed.flags->engine.chat_template, "{{ messages }}\n");
  const auto error = [](const std::string& path) {
    Flags flags = *Parse({"--chat_template", path}).flags;
    return std::string(ReadChatTemplate(flags).message());
  };
  EXPECT_EQ(error(file + "2"), "--chat_template: file 'chat.jinja2' does not exist");
  EXPECT_THAT(error(folder.Write("long", std::string((1 << 20) + 1, 'x'))),
              StartsWith("--chat_template: "));
  chmod(file.c_str(), 0666);
  EXPECT_THAT(error(file), StartsWith("--chat_template: "));
  Flags none = *Parse({}).flags;
  EXPECT_TRUE(ReadChatTemplate(none).ok());
  EXPECT_FALSE(none.engine.chat_template.has_value());
}

std::string PrintedBy(const std::string& flag) {
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(Parse({flag}).flags.has_value());
  return ::testing::internal::GetCapturedStdout();
}

TEST(Flags, WhatIsPrintedAsConfigurationCanBeReadAsOne) {
  const TempFolder folder;
  const std::string config = folder.Write("config", PrintedBy("--print_config"));
  EXPECT_TRUE(Parse({"--config", config}).flags.has_value()) << ReadFile(config);
}

TEST(Flags, WhatTheServerWouldRefuseIsPrintedAndRefused) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const ParsedFlags parsed =
      Parse({"--metrics_listen", "[::]:8472", "--allow_network_metrics", "--print_config"});
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("[::]:8472"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--metrics_listen: must be"));
  EXPECT_FALSE(parsed.flags.has_value());
  EXPECT_EQ(parsed.exit_code, kExitBadStart);
}

TEST(Flags, SharesAreNumbersBelowAll) {
  for (const char* flag : {"--max_memory_fraction", "--kv_pool_fraction"}) {
    EXPECT_TRUE(Parse({flag, "0.5"}).flags.has_value());
    for (const char* share :
         {"nan", "NAN", "-nan", "inf", "0", "-0.5", "1.01", "", "half", "0.5x"}) {
      EXPECT_FALSE(Parse({flag, share}).flags.has_value()) << flag << " " << share;
    }
  }
  EXPECT_FALSE(Parse({"--max_memory_fraction", "1"}).flags.has_value()) << "nothing is above it";
}

// bad input: Server | --speculation: any other value | exit code 2, the flag named
TEST(Flags, DraftsComeFromWhereTheFlagSays) {
  EXPECT_EQ(Parse({}).flags->engine.speculation, Speculation::kAuto);
  EXPECT_EQ(Parse({"--speculation=off"}).flags->engine.speculation, Speculation::kOff);
  EXPECT_EQ(Parse({"--speculation", "prompt"}).flags->engine.speculation, Speculation::kPrompt);
  EXPECT_EQ(Parse({"--speculation", "self"}).flags->engine.speculation, Speculation::kSelf);
  for (const char* value : {"model", "on", ""})
    EXPECT_THAT(Refusal({"--speculation", value}), HasSubstr("--speculation")) << value;
}

// bad input: Server | --shadow_rate: not a number, below 0, above 1 | exit code 2, the flag named
TEST(Flags, TheShadowRateIsAShareOrNothing) {
  for (const char* rate : {"0", "0.001", "1"}) {
    EXPECT_TRUE(Parse({"--shadow_rate", rate}).flags.has_value()) << rate;
  }
  for (const char* rate : {"nan", "-0.001", "1.01", "inf", "", "some"}) {
    EXPECT_THAT(Refusal({"--shadow_rate", rate}), HasSubstr("--shadow_rate")) << rate;
  }
}

// bad input: Profiles | --keep_versions negative or no number | exit code 2, the flag named
TEST(Flags, SoManyVersionsAreKeptOrAll) {
  const auto kept = [](const std::string& flag) {
    return Parse({flag}).flags->profile_store_options.keep_versions;
  };
  EXPECT_EQ(kept("--reflection"), 0) << "all";
  EXPECT_EQ(kept("--keep_versions=10"), 10);
  for (const char* count : {"-1", "ten", "1.5", "4294967296", ""}) {
    EXPECT_FALSE(Parse({"--keep_versions", count}).flags.has_value()) << count;
  }
}

// bad input: Server | --otlp_sampling: not a number, below 0, above 1; other than 1 without
//   --otlp_endpoint | exit code 2, the flag named
TEST(Flags, TracesAreSampledByAShare) {
  for (const char* share : {"0", "0.25", "1"}) {
    EXPECT_TRUE(Parse({"--otlp_sampling", share}).flags.has_value()) << share;
  }
  for (const char* share : {"nan", "-0.1", "1.01", "inf", "", "all"}) {
    EXPECT_THAT(Refusal({"--otlp_sampling", share}), HasSubstr("--otlp_sampling")) << share;
  }
  const auto error = [](const std::string& endpoint, double share) {
    ServerOptions options;
    options.otlp_endpoint = endpoint;
    options.otlp_sampling = share;
    return std::string(CheckOtlp(options).message());
  };
  EXPECT_EQ(error("", 1.0), "");
  EXPECT_EQ(error("", 0.5), "--otlp_sampling: needs --otlp_endpoint");
  EXPECT_EQ(error("http://collector:4317", 0.5), "");
  EXPECT_THAT(error("http://collector:4317", std::nan("")), StartsWith("--otlp_sampling: must be"));
}

// bad input: Server | --otlp_endpoint without a scheme, of another one, with a path or a user, port
//   0 or none | exit code 2, the flag named | TraceProcess.DoesNotStartWithABadEndpoint
TEST(Flags, ACollectorIsASchemeAHostAndAPort) {
  const auto check = [](const std::string& endpoint) {
    ServerOptions options;
    options.otlp_endpoint = endpoint;
    return std::string(CheckOptions(options, Limits()).message());
  };
  for (const char* good :
       {"http://localhost:4317", "https://otel.example.org:4317", "http://10.0.0.7:4317",
        "http://[::1]:4317", "https://[fe80::1%eth0]:443", "http://my_collector:65535"}) {
    EXPECT_EQ(check(good), "") << good;
  }
  for (const char* bad :
       {"localhost:4317", "http:/localhost:4317", "grpc://localhost:4317", "unix:/run/otel.sock",
        "http://localhost", "http://localhost:", "http://localhost:0", "http://localhost:70000",
        "http://localhost:4317/", "http://localhost:4318/v1/traces", "http://user@host:4317",
        "http://:4317", "http://[]:4317", "http://::1:4317", "http://", "https://", "h",
        "http://a b:4317", "HTTP://localhost:4317"}) {
    EXPECT_THAT(check(bad), StartsWith("--otlp_endpoint: must be http://host:port")) << bad;
  }
  ServerOptions options;
  options.otlp_endpoint = "https://[::1]:4317";
  EXPECT_EQ(OtlpAddress(options), "[::1]:4317");
  EXPECT_TRUE(OtlpByTls(options));
  options.otlp_endpoint = "http://collector:4317";
  EXPECT_EQ(OtlpAddress(options), "collector:4317");
  EXPECT_FALSE(OtlpByTls(options));
}

TEST(Flags, APasswordInTheCommandLineIsNoticed) {
  const auto shows = [](const std::string& url) {
    return Parse({"--profile_store", url}).flags->shows_password;
  };
  EXPECT_TRUE(shows("postgresql://eta:s3cret@db/eta"));
  EXPECT_TRUE(shows("postgresql://db/eta?user=eta&password=s3cret"));
  EXPECT_FALSE(shows("postgresql://eta@db:5432/eta?passfile=/run/secrets/pgpass"));
  EXPECT_FALSE(shows("postgresql://db:5432/eta"));
  EXPECT_FALSE(shows("profiles.db"));
}

TEST(Flags, TheLogIsForPeopleOnlyWhereItIsAskedToBe) {
  EXPECT_EQ(Parse({"--log_format", "text"}).flags->log.format, LogFormat::kText);
  EXPECT_EQ(Parse({"--log_format", "json"}).flags->log.format, LogFormat::kJson);
  EXPECT_EQ(Parse({}).flags->log.level, LogLevel::kInfo);
  EXPECT_EQ(Parse({"--log_level", "debug"}).flags->log.level, LogLevel::kDebug);
  EXPECT_FALSE(Parse({"--log_level", "loud"}).flags.has_value());
}

}  // namespace
}  // namespace eta
