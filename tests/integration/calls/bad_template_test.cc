// Chat templates that want too much, given to the built server: rows 106 to 115 of the table of bad
// inputs.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/server_process.h"
#include "tests/testing/service/chat_server.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

// One template that does what the message asks for.
constexpr char kObedient[] =
    "{% set c = messages[0].content %}{% set ns = namespace(x='ab') %}"
    "{% macro again() %}{{ again() }}{% endmacro %}"
    "{% if c == 'loop' %}{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor "
    "%}"
    "{% elif c == 'range' %}{{ range(10 ** 12) }}"
    "{% elif c == 'double' %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    "{% elif c == 'repeat' %}{{ 'a' * 10 ** 15 }}"
    "{% elif c == 'long' %}{% for a in range(100) %}{{ 'a' * 1000000 }}{% endfor %}"
    "{% elif c == 'macro' %}{{ again() }}"
    "{% elif c == 'nest' %}{% for a in range(99) %}{% set ns.x = [ns.x] %}{% endfor %}"
    "{% elif c == 'self' %}{% set ns.x = [ns] %}x"
    "{% elif c == 'filter' %}{{ c|from_yaml }}"
    "{% elif c == 'raise' %}{{ raise_exception('not that') }}"
    "{% elif c == 'undefined' %}{{ nobody.x }}"
    "{% elif c == 'type' %}{{ c + 1 }}"
    "{% elif c == 'class' %}{{ c.__class__.__mro__ }}"
    "{% elif c == 'append' %}{{ messages.append(1) }}"
    "{% else %}{{ c }}{% endif %}";

class BadTemplateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder();
    server_ = new ChatServer({"--chat_template", folder_->Write("obedient.jinja", kObedient)});
  }
  static void TearDownTestSuite() {
    delete server_;
    delete folder_;
  }
  void SetUp() override { ASSERT_TRUE(server_->server().up()); }
  void TearDown() override {
    const auto good = server_->Ask(Say("Hello"));
    EXPECT_TRUE(good.status.ok()) << "a good call afterwards: " << good.status.error_message();
  }

  // INVALID_ARGUMENT, field chat, with these words.
  void ExpectRefused(const std::string& content, const std::string& words) {
    const grpc::Status status = server_->Ask(Say(content)).status;
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << content;
    EXPECT_EQ(FieldOf(status), "chat") << content;
    EXPECT_THAT(status.error_message(), HasSubstr(words)) << content;
  }

  static inline TempFolder* folder_ = nullptr;
  static inline ChatServer* server_ = nullptr;
};

TEST_F(BadTemplateTest, LoopsWithinLoops) {
  ExpectRefused("loop", "limit of 4194304 steps");
}

TEST_F(BadTemplateTest, HugeRanges) {
  ExpectRefused("range", "a range of over 100000 items");
}

TEST_F(BadTemplateTest, TextsThatGrowWithoutEnd) {
  ExpectRefused("double", "limit of 64 MiB");
  ExpectRefused("repeat", "limit of 64 MiB");
}

TEST_F(BadTemplateTest, ATextOf100Megabytes) {
  ExpectRefused("long", "limit of 16 MiB");
}

TEST_F(BadTemplateTest, MacrosAndValuesWithoutABottom) {
  ExpectRefused("macro", "over 100 deep");
  ExpectRefused("nest", "over 64 deep");
  EXPECT_TRUE(server_->Ask(Say("self")).status.ok());
}

TEST_F(BadTemplateTest, WhatIsNotKnownBehindACondition) {
  const grpc::Status status = server_->Ask(Say("filter")).status;
  EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(status), "CHAT_UNSUPPORTED");
  EXPECT_THAT(status.error_message(), HasSubstr("filter 'from_yaml' is not known here"));
}

TEST_F(BadTemplateTest, WhatTheTemplateRefusesAndCannotDo) {
  ExpectRefused("raise", "line 1: not that");
  ExpectRefused("undefined", "'nobody' is undefined");
  ExpectRefused("type", "unsupported operand types for +: 'str' and 'int'");
}

TEST_F(BadTemplateTest, PythonsObjectsAndChangesOfValues) {
  ExpectRefused("class", "no attribute '__class__'");
  ExpectRefused("append", "forbidden in templates");
}

std::string Repeated(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

// The server ends with exit code 2, and says why in one line.
void ExpectBadStart(const std::vector<std::pair<std::string, std::string>>& templates) {
  const TinyModel model;
  const TempFolder folder;
  for (const auto& [source, why] : templates) {
    ServerProcess server(ETA_BINARY_DIR "/eta-server",
                         {"--model", model.path(), "--listen", "127.0.0.1:0", "--chat_template",
                          folder.Write("bad.jinja", source)});
    EXPECT_EQ(server.AwaitAddress(), "") << why;
    const auto exit = server.AwaitExit();
    EXPECT_EQ(exit.code, 2) << why;
    EXPECT_THAT(exit.errors, HasSubstr("chat_template"));
    EXPECT_THAT(exit.errors, HasSubstr(why));
  }
}

TEST(BadTemplateStart, ExpressionsAndStatementsThatNestTooDeep) {
  ExpectBadStart({{"{{ " + Repeated("(", 300000) + "x" + Repeated(")", 300000) + " }}",
                   "an expression nests too deep"},
                  {Repeated("{% if x %}", 90000), "statements nest over 200 deep"},
                  {"{% for " + Repeated("(", 300000) + "x" + Repeated(")", 300000) + " in y %}",
                   "a target nests too deep"}});
}

TEST(BadTemplateStart, WhatIsNotKnown) {
  ExpectBadStart({{"{{ x|urlize }}", "line 1: filter 'urlize' is not known here"},
                  {"\n{{ x is filter }}", "line 2: test 'filter' is not known here"},
                  {"{% include 'x' %}", "statement 'include' is not known here"}});
}

TEST(BadTemplateStart, TextAndNumbersThatAreNone) {
  ExpectBadStart({{"a\xff", "not UTF-8 at byte 1"},
                  {"\xed\xa0\x80", "not UTF-8 at byte 0"},
                  {"{{ '\\ud800' }}", "surrogates in strings are not known here"},
                  {"{{ '\\u12' }}", "an escape that is cut short"},
                  {"{{ 9223372036854775808 }}", "integers of over 64 bits"},
                  {"{{ 'a }}", "a string has no end"}});
}

}  // namespace
}  // namespace eta::testing
