// Lines of the log: what they look like, and that nobody waits for their reader.
#include "service/log/log.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process/log_pipe.h"

namespace eta::testing {
namespace {

using ::testing::StartsWith;

bool IsPrintable(const std::string& line) {
  return line.find_first_not_of(
             " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"
             "abcdefghijklmnopqrstuvwxyz{|}~") == std::string::npos;
}

LogEvent Numbered(int i, LogLevel level = LogLevel::kInfo) {
  return LogEvent(level, "numbered").Add("i", i);
}

TEST(LogEvent, IsOneObjectOfJson) {
  const std::string line = LogEvent(LogLevel::kWarning, "store_trouble", "cannot \"read\"")
                               .Add("reason", "STORE_IO_ERROR")
                               .Add("tries", 3)
                               .Add("seconds", 0.25)
                               .Add("fatal", false)
                               .Add("nothing", "")
                               .Add("details", LogEvent::Map{{"path", "/x"}})
                               .Line(LogFormat::kJson);
  const auto json = nlohmann::json::parse(line);
  EXPECT_THAT(std::string(json["time"]), ::testing::MatchesRegex("....-..-..T..:..:..\\.......Z"));
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["event"], "store_trouble");
  EXPECT_EQ(json["message"], "cannot \"read\"");
  EXPECT_EQ(json["reason"], "STORE_IO_ERROR");
  EXPECT_EQ(json["tries"], 3);
  EXPECT_EQ(json["seconds"], 0.25);
  EXPECT_EQ(json["fatal"], false);
  EXPECT_FALSE(json.contains("nothing"));
  EXPECT_EQ(json["details"]["path"], "/x");
  EXPECT_THAT(line, StartsWith("{\"time\":"));
}

TEST(LogEvent, IsALineForPeople) {
  EXPECT_EQ(LogEvent(LogLevel::kInfo, "stop", "stopped").Add("x", 1).Line(LogFormat::kText),
            "eta-server: stopped");
  EXPECT_EQ(LogEvent(LogLevel::kWarning, "x", "say \"when\"").Line(LogFormat::kText),
            "eta-server: warning: say \"when\"");
  EXPECT_EQ(LogEvent(LogLevel::kError, "call_end")
                .Add("method", "Generate")
                .Add("error", "two words")
                .Add("tokens", 5)
                .Line(LogFormat::kText),
            "eta-server: error: call_end method=Generate error=\"two words\" tokens=5");
}

TEST(LogEvent, WhateverComesItStaysOnePrintableLine) {
  const std::string hostile("a\nb\r\x1b[31m\x7f\0\xc2\x9b\xff\xfe\xe2\x82 {\"event\":\"forged\"}",
                            36);
  for (const LogFormat format : {LogFormat::kJson, LogFormat::kText}) {
    for (const bool as_message : {true, false}) {
      LogEvent event(LogLevel::kInfo, "call_end", as_message ? hostile : "");
      event.Add("name", hostile).Add("details", LogEvent::Map{{hostile, hostile}});
      const std::string line = event.Line(format);
      EXPECT_TRUE(IsPrintable(line)) << line;
      if (format == LogFormat::kJson) {
        EXPECT_EQ(nlohmann::json::parse(line)["event"], "call_end");
      }
    }
  }
}

TEST(LogEvent, IsBounded) {
  LogEvent event(LogLevel::kInfo, "long", std::string(100'000, '\x01'));
  for (int i = 0; i < 100; ++i) event.Add("k" + std::to_string(i), std::string(100'000, '\x01'));
  for (const LogFormat format : {LogFormat::kJson, LogFormat::kText}) {
    EXPECT_LE(event.Line(format).size(), LogEvent::kMaxLineBytes);
  }
  const auto json = nlohmann::json::parse(event.Line(LogFormat::kJson));
  EXPECT_EQ(json["truncated"], true);
  EXPECT_EQ(json["event"], "long");
  LogEvent text(LogLevel::kInfo, "long");
  for (int i = 0; i < 100; ++i) text.Add("k", std::string(1000, ' '));
  EXPECT_LE(text.Line(LogFormat::kText).size(), LogEvent::kMaxLineBytes);
}

TEST(Log, WritesInOrderWhatIsOfItsLevel) {
  LogPipe pipe;
  {
    Log log({.level = LogLevel::kInfo, .fd = pipe.writer()});
    log.Write(Numbered(0));
    log.Write(Numbered(1, LogLevel::kDebug));
    log.SetLevel(LogLevel::kError);
    log.Write(Numbered(2, LogLevel::kWarning));
    log.Write(Numbered(3, LogLevel::kError));
    log.SetLevel(LogLevel::kDebug);
    log.Write(Numbered(4, LogLevel::kDebug));
  }
  pipe.CloseWriter();
  std::vector<int> seen;
  for (const std::string& line : pipe.ReadAll()) seen.push_back(nlohmann::json::parse(line)["i"]);
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 3, 4));
}

TEST(Log, AReaderThatStallsHoldsUpNobodyAndHearsHowMuchItMissed) {
  constexpr int kEvents = 20'000;  // more than pipe and queue hold
  LogPipe pipe;
  std::optional<Log> log;
  log.emplace(LogOptions{
      .fd = pipe.writer(), .max_waiting = 100, .last_wait = std::chrono::milliseconds(60'000)});
  for (int i = 0; i < kEvents; ++i) log->Write(Numbered(i));
  const int64_t dropped = log->dropped();
  EXPECT_GT(dropped, 0);

  const std::vector<std::string> lines = pipe.ReadRest(log);
  int64_t written = 0;
  int64_t missed = 0;
  int last = -1;
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    if (json["event"] == "log_dropped") {
      missed += json["events"].get<int64_t>();
      continue;
    }
    ++written;
    EXPECT_GT(json["i"], last);
    last = json["i"];
  }
  EXPECT_EQ(missed, dropped);
  EXPECT_EQ(written + missed, kEvents);
}

TEST(Log, NoFloodOfLinesNorOfDenialsPushesOutAChange) {
  constexpr int kChanges = 20;
  LogPipe pipe;
  std::optional<Log> log;
  log.emplace(LogOptions{.level = LogLevel::kError,
                         .fd = pipe.writer(),
                         .max_waiting = 100,
                         .last_wait = std::chrono::milliseconds(60'000)});
  for (const LogRank flood : {LogRank::kUsual, LogRank::kAudit}) {
    for (int i = 0; i < 20'000; ++i) log->Write(Numbered(-1, LogLevel::kError).Rank(flood));
  }
  for (int i = 0; i < kChanges; ++i) log->Write(Numbered(i).Rank(LogRank::kChange));
  const int64_t dropped = log->dropped();

  const std::vector<std::string> lines = pipe.ReadRest(log);
  int64_t missed = 0, missed_audit = 0;
  int next = 0;
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    if (json["event"] == "log_dropped") {
      missed += json["events"].get<int64_t>();
      missed_audit += json["audit_events"].get<int64_t>();
    } else if (json["i"] != -1) {
      EXPECT_EQ(json["i"], next++);
    }
  }
  EXPECT_EQ(next, kChanges);
  EXPECT_EQ(missed, dropped);
  EXPECT_GT(missed_audit, 0);
  EXPECT_GT(missed, missed_audit);
}

TEST(Log, EndsAlthoughNobodyReads) {
  LogPipe pipe;
  Log log({.fd = pipe.writer(), .last_wait = std::chrono::milliseconds(10)});
  for (int i = 0; i < 20'000; ++i) log.Write(Numbered(i));
}

TEST(Log, NobodyThereToReadIsNoTrouble) {
  Log closed({.fd = 1023});  // not open
  closed.Write(Numbered(0));
  Log::Nowhere().Write(Numbered(0));
  EXPECT_FALSE(Log::Nowhere().Writes(LogLevel::kError));
}

}  // namespace
}  // namespace eta::testing
