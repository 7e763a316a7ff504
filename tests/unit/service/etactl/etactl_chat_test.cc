// Parts of `etactl chat`: what a line asks for, and the history.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/etactl/generate/chat.h"
#include "service/etactl/generate/chat_history.h"
#include "service/etactl/generate/chat_tools.h"
#include "tests/testing/base/temp_folder.h"

namespace eta::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Kind = ChatLine::Kind;

std::vector<std::string> Said(const ChatHistory& history) {
  std::vector<std::string> lines;
  for (const v1::ChatMessage& message : history.chat().messages()) {
    lines.push_back(v1::ChatRole_Name(message.role()).substr(10) + " " + message.text());
  }
  return lines;
}

TEST(ChatLine, IsAMessageOrACommand) {
  const std::vector<std::pair<std::string, ChatLine>> cases = {
      {"Hello", {Kind::kMessage, "Hello"}},
      {"  a / b \r", {Kind::kMessage, "  a / b "}},
      {"\treturn 0;", {Kind::kMessage, "\treturn 0;"}},
      {" /clear", {Kind::kMessage, " /clear"}},
      {"//etc/hosts is a file", {Kind::kMessage, "/etc/hosts is a file"}},
      {"", {Kind::kNothing, ""}},
      {" \t", {Kind::kNothing, ""}},
      {"/clear", {Kind::kClear, ""}},
      {"/clear all", {Kind::kUnknown, "/clear"}},
      {"/system Be  brief.", {Kind::kSystem, "Be  brief."}},
      {"/system", {Kind::kSystem, ""}},
      {"/tool call_1 sunny, 12 C", {Kind::kTool, "call_1 sunny, 12 C"}},
      {"/tool", {Kind::kUnknown, "/tool"}},
      {"/help", {Kind::kHelp, ""}},
      {"/systems x", {Kind::kUnknown, "/systems"}},
      {"/", {Kind::kUnknown, "/"}}};
  for (const auto& [line, expected] : cases) {
    const ChatLine read = ReadChatLine(line);
    EXPECT_EQ(read.kind, expected.kind) << line;
    EXPECT_EQ(read.text, expected.text) << line;
  }
}

TEST(ChatHistory, HasItsSystemPromptFirst) {
  ChatHistory history;
  history.Add(v1::CHAT_ROLE_USER, "Hello");
  history.SetSystem("Be brief.");
  history.Add(v1::CHAT_ROLE_ASSISTANT, "Hi");
  EXPECT_THAT(Said(history), ElementsAre("SYSTEM Be brief.", "USER Hello", "ASSISTANT Hi"));
  history.SetSystem("Be long.");
  history.DropLast();
  EXPECT_THAT(Said(history), ElementsAre("SYSTEM Be long.", "USER Hello"));
  history.Clear();
  EXPECT_THAT(Said(history), ElementsAre("SYSTEM Be long."));
  history.SetSystem("");
  EXPECT_THAT(Said(history), ElementsAre());
  history.Clear();
}

TEST(ChatHistory, IsReadAsItWasWritten) {
  const TempFolder folder;
  const std::string file = folder.path() + "/chat.jsonl";
  EXPECT_THAT(Said(ChatHistory::Read(file).value()), ElementsAre());
  ChatHistory history;
  history.SetSystem("a \"quoted\"\nword");
  history.Add(v1::CHAT_ROLE_USER, "\xc3\xa9\x01");
  history.Add(v1::CHAT_ROLE_TOOL, "{}");
  ASSERT_TRUE(history.Write(file).ok());
  EXPECT_EQ(Said(ChatHistory::Read(file).value()), Said(history));
  EXPECT_FALSE(history.Write(folder.path() + "/no/chat.jsonl").ok());
}

TEST(ChatHistory, LosesNothingOfWhatItRead) {
  const TempFolder folder;
  const std::string kept =
      R"({"role":"system","content":"Brief.","name":"ops","made":"2026-01-01"})"
      "\n"
      R"({ "content" : "12 C" , "role" : "tool", "tool_call_id":"call-7", "tool_calls": [], "n":1.0})"
      "\n"
      R"({"role": "user", "content": "Hi", "name": null})"
      "\n"
      R"({"role": "assistant", "reasoning_content": "so", "content": "Ho"})"
      "\n";
  const std::string file = folder.Write("chat.jsonl", kept);
  auto history = ChatHistory::Read(file).value();
  EXPECT_THAT(Said(history), ElementsAre("SYSTEM Brief.", "TOOL 12 C", "USER Hi", "ASSISTANT Ho"));
  EXPECT_EQ(history.chat().messages(3).reasoning(), "so");
  EXPECT_EQ(history.chat().messages(0).name(), "ops");
  EXPECT_EQ(history.chat().messages(1).tool_call_id(), "call-7");
  EXPECT_FALSE(history.chat().messages(2).has_name());
  history.SetSystem("Brief.");  // as it was
  v1::ChatMessage answer;
  answer.set_role(v1::CHAT_ROLE_ASSISTANT);
  answer.set_text("Hello");
  answer.set_reasoning("why");
  history.Add(std::move(answer));
  ASSERT_TRUE(history.Write(file).ok());
  EXPECT_EQ(ReadFile(file),
            kept + R"({"role":"assistant","content":"Hello","reasoning_content":"why"})" + "\n");
  history.SetSystem("Long.");
  history.Clear();
  ASSERT_TRUE(history.Write(file).ok());
  EXPECT_EQ(ReadFile(file), R"({"role":"system","content":"Long."})"
                            "\n");
}

// bad input: etactl | chat `--history`: a file that cannot be replaced | exit code 1; the file
//   stays as it was
TEST(ChatHistory, ReplacesItsFileWholeOrNotAtAll) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  const std::string file = folder.Write("chat.jsonl", R"({"role": "user", "content": "x"})");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  const std::string link = folder.path() + "/link.jsonl";
  fs::create_symlink("chat.jsonl", link);
  ChatHistory history;
  history.Add(v1::CHAT_ROLE_USER, "Hello");
  ASSERT_TRUE(history.Write(link).ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(ReadFile(file), R"({"role":"user","content":"Hello"})"
                            "\n");

  const std::string unborn = folder.path() + "/unborn.jsonl";
  fs::create_symlink("born.jsonl", unborn);
  ASSERT_TRUE(history.Write(unborn).ok());
  EXPECT_TRUE(fs::is_symlink(unborn));
  EXPECT_EQ(ReadFile(folder.path() + "/born.jsonl"), ReadFile(file));

  const absl::Status refused = history.Write(folder.path());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("not a regular file"));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, UnorderedElementsAre("chat.jsonl", "link.jsonl", "unborn.jsonl", "born.jsonl"))
      << "nothing is left of what was written beside them";
}

// bad input: etactl | chat `--history`: a line that is no message, has fields of other types, calls
//   of another form, or a `function_call` | exit code 2, file and line named |
//   EtactlChatProcessTest.SaysWhatIsRefused
TEST(ChatHistory, NamesTheLineThatItCannotRead) {
  const TempFolder folder;
  for (const char* bad :
       {"nothing", "[]", R"({"role": "user"})", R"({"role": "nobody", "content": "x"})",
        R"({"content": "x"})", R"({"role": "user", "content": 1})",
        R"({"role": "user", "content": "x", "name": 7})",
        R"({"role": "tool", "content": "x", "tool_call_id": []})",
        R"({"role": "assistant", "content": null, "tool_calls": [{"id": "call-7"}]})",
        R"({"role": "assistant", "tool_calls": {}, "content": "x"})",
        R"({"role": "assistant", "tool_calls": [{"type": "x", "function": {"name": "f"}}]})",
        R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]})",
        R"({"role": "assistant", "content": "", "function_call": {"name": "f"}})"}) {
    const std::string file = folder.Write(
        "chat.jsonl", std::string(R"({"role": "user", "content": "x"})") + "\n\n" + bad + "\n");
    const auto read = ChatHistory::Read(file);
    EXPECT_FALSE(read.ok()) << bad;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("chat.jsonl:3: ")) << bad;
  }
}

TEST(ChatHistory, KeepsCallsOfTools) {
  const TempFolder folder;
  const std::string line =
      R"({"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", )"
      R"("function": {"name": "weather", "arguments": "{\"city\": \"Paris\"}"}}, )"
      R"({"function": {"name": "clock", "arguments": {"b": 1, "a": 2}}}]})"
      "\n";
  const std::string file = folder.Write("chat.jsonl", line);
  ChatHistory history = ChatHistory::Read(file).value();
  const v1::ChatMessage& read = history.chat().messages(0);
  EXPECT_EQ(read.content_case(), v1::ChatMessage::CONTENT_NOT_SET);
  ASSERT_EQ(read.tool_calls_size(), 2);
  EXPECT_EQ(read.tool_calls(0).id(), "a");
  EXPECT_EQ(read.tool_calls(0).name(), "weather");
  EXPECT_EQ(read.tool_calls(0).arguments(), R"({"city": "Paris"})");
  EXPECT_EQ(read.tool_calls(1).id(), "");
  EXPECT_EQ(read.tool_calls(1).arguments(), R"({"a":2,"b":1})");
  EXPECT_THAT(history.OpenCalls(), SizeIs(2));

  v1::ChatMessage result;
  result.set_role(v1::CHAT_ROLE_TOOL);
  result.set_text("sunny");
  result.set_name("weather");
  result.set_tool_call_id("a");
  history.Add(std::move(result));
  EXPECT_THAT(history.OpenCalls(), SizeIs(1));
  v1::ChatMessage answer;
  answer.set_role(v1::CHAT_ROLE_ASSISTANT);
  answer.set_text("So:");
  *answer.add_tool_calls() = history.chat().messages(0).tool_calls(0);
  history.Add(std::move(answer));
  ASSERT_TRUE(history.Write(file).ok());
  EXPECT_EQ(ReadFile(file),
            line +
                R"({"role":"tool","content":"sunny","name":"weather","tool_call_id":"a"})"
                "\n"
                R"({"role":"assistant","content":"So:","tool_calls":[{"id":"a","type":"function",)"
                R"("function":{"name":"weather","arguments":"{\"city\": \"Paris\"}"}}]})"
                "\n");
  const ChatHistory again = ChatHistory::Read(file).value();
  EXPECT_EQ(again.chat().SerializeAsString(), history.chat().SerializeAsString());
  history.Add(v1::CHAT_ROLE_USER, "Thanks");
  EXPECT_THAT(history.OpenCalls(), SizeIs(0));
}

TEST(ChatTools, AreReadAsOpenAiHasThem) {
  const TempFolder folder;
  const std::string file = folder.Write(
      "tools.json",
      R"([{"type": "function", "function": {"name": "weather", "description": "tells it",
           "strict": true, "parameters": {"type": "object", "b": 1, "a": 2}}},
          {"name": "clock", "description": null}])");
  v1::Chat chat;
  ASSERT_TRUE(ReadTools(file, &chat).ok());
  ASSERT_EQ(chat.tools_size(), 2);
  EXPECT_EQ(chat.tools(0).name(), "weather");
  EXPECT_EQ(chat.tools(0).description(), "tells it");
  EXPECT_TRUE(chat.tools(0).strict());
  EXPECT_EQ(chat.tools(0).parameters(), R"({"type":"object","b":1,"a":2})");
  EXPECT_EQ(chat.tools(1).name(), "clock");
  EXPECT_FALSE(chat.tools(1).has_description());
  EXPECT_EQ(ToolChoiceOf("required").mode(), v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_EQ(ToolChoiceOf("none").mode(), v1::TOOL_CHOICE_MODE_NONE);
  EXPECT_EQ(ToolChoiceOf("auto").mode(), v1::TOOL_CHOICE_MODE_AUTO);
  EXPECT_EQ(ToolChoiceOf("weather").name(), "weather");
}

// bad input: etactl | chat `--tools`: a file that is no list of tools, or has one of another form |
//   exit code 2, file and tool named
TEST(ChatTools, NameTheToolThatTheyCannotRead) {
  const TempFolder folder;
  for (const char* bad : {"", "{}", "[1]", "[{}]", R"([{"type": "web_search"}])",
                          R"([{"name": "f", "parameters": "x"}])", R"([{"name": 1}])",
                          R"([{"type": "function", "function": {"name": "f", "other": 1}}])"}) {
    const std::string file = folder.Write("tools.json", bad);
    v1::Chat chat;
    EXPECT_THAT(std::string(ReadTools(file, &chat).message()), HasSubstr("tools.json: ")) << bad;
  }
}

TEST(ChatFlags, AnswersAsGenerateDoes) {
  ChatFlags flags;
  CLI::App app;
  AddChatCommand(app, &flags);
  std::vector<std::string> arguments = {
      "chat",          "--system", "Be brief.",   "--message", "Hello",        "--message", "Bye",
      "--temperature", "0",        "--attention", "full",      "--max_tokens", "7",         "Hi"};
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  EXPECT_EQ(flags.message, "Hi");
  EXPECT_THAT(flags.messages, ElementsAre("Hello", "Bye"));
  EXPECT_EQ(flags.system, "Be brief.");
  v1::GenerateRequest request;
  ASSERT_TRUE(FillAnswer(flags.answer, &request).ok());
  EXPECT_EQ(request.sampling().temperature(), 0.0f);
  EXPECT_EQ(request.stopping().max_tokens(), 7);
  EXPECT_TRUE(request.attention().has_full());
  EXPECT_EQ(request.prompt_case(), v1::GenerateRequest::PROMPT_NOT_SET);
}

}  // namespace
}  // namespace eta::ctl
