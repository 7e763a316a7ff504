// What of the command line is told to whoever reads the log.
#include "service/flags.h"

#include "gmock/gmock.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

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

TEST(Flags, TheLogIsForPeopleOnlyWhereItIsAskedToBe) {
  EXPECT_EQ(Parse({"--log_format", "text"}).flags->log.format, LogFormat::kText);
  EXPECT_EQ(Parse({"--log_format", "json"}).flags->log.format, LogFormat::kJson);
  EXPECT_EQ(Parse({}).flags->log.level, LogLevel::kInfo);
  EXPECT_EQ(Parse({"--log_level", "debug"}).flags->log.level, LogLevel::kDebug);
  EXPECT_FALSE(Parse({"--log_level", "loud"}).flags.has_value());
}

}  // namespace
}  // namespace eta
