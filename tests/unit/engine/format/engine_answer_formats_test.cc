// The engine's door to formats of answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "engine/front/engine.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

constexpr Clock::time_point kNoHurry = Clock::time_point::max();

EngineOptions Tiny(const testing::TinyModel& model, FormatHelper* helper) {
  EngineOptions options;
  options.model_dir = model.path();
  options.backend.num_threads = 1;
  options.kv_pool_bytes = int64_t{4} << 20;
  options.format_helper = helper;
  return options;
}

std::unique_ptr<Engine> Open(const EngineOptions& options) {
  auto opened = Engine::Create(options);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return opened.ok() ? *std::move(opened) : nullptr;
}

const AnswerFormat kObject = {.kind = AnswerFormatKind::kJsonObject};

TEST(EngineAnswerFormats, WithoutAHelperAllAreRefused) {
  const testing::TinyModel model;
  const auto engine = Open(Tiny(model, nullptr));
  EXPECT_EQ(engine->formats().Find("", kObject), nullptr);
  EXPECT_THAT(engine->formats().Compile("", kObject, kNoHurry).status(),
              FailsFor(kUnimplemented, "UNSUPPORTED_BY_SERVER"));
}

TEST(EngineAnswerFormats, AreCompiledForTheModelsTokens) {
  if (!HasGrammarLibrary()) GTEST_SKIP() << "built without formats of answers";
  const auto helper = FormatHelper::Start({});
  ASSERT_TRUE(helper.ok()) << helper.status();
  const testing::TinyModel model;
  const auto engine = Open(Tiny(model, helper->get()));
  // Some tokenizers put a space before a text.
  const AnswerFormat choice = {.kind = AnswerFormatKind::kChoice,
                               .choices = {"no", "the town", " the town"}};
  const auto format = engine->formats().Compile("", choice, kNoHurry);
  ASSERT_TRUE(format.ok()) << format.status();
  EXPECT_EQ(engine->formats().Find("", choice), *format);
  const auto guide = (*format)->NewGuide(/*in_reasoning=*/false);
  const auto ids = engine->Tokenize("the town");
  ASSERT_TRUE(ids.ok());
  for (size_t i = 1; i < ids->size(); ++i) ASSERT_TRUE(guide->Accept((*ids)[i])) << i;
  EXPECT_TRUE(guide->Complete());
  EXPECT_TRUE(guide->Accept(engine->info().config.eos_ids.front()));
}

TEST(EngineAnswerFormats, ALostHelperCostsFormatsAlone) {
  if (!HasGrammarLibrary()) GTEST_SKIP() << "built without formats of answers";
  auto options = FormatHelperOptions{.harden_helper = [] { _exit(0); }};
  const auto helper = FormatHelper::Start(options);
  ASSERT_TRUE(helper.ok()) << helper.status();
  const testing::TinyModel model;
  const auto engine = Open(Tiny(model, helper->get()));
  ASSERT_NE(engine, nullptr);
  EXPECT_THAT(engine->formats().Compile("", kObject, kNoHurry).status(),
              FailsFor(absl::StatusCode::kUnavailable, "FORMATS_UNAVAILABLE"));
}

// A model that knows ids only has no text to bind.
TEST(EngineAnswerFormats, NeedAModelThatKnowsText) {
  if (!HasGrammarLibrary()) GTEST_SKIP() << "built without formats of answers";
  const auto helper = FormatHelper::Start({});
  ASSERT_TRUE(helper.ok()) << helper.status();
  const testing::TinyModel model;
  std::filesystem::remove(model.path() + "/tokenizer.model");
  const auto engine = Open(Tiny(model, helper->get()));
  EXPECT_THAT(engine->formats().Compile("", kObject, kNoHurry).status(),
              FailsFor(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_BY_MODEL"));
}

}  // namespace
}  // namespace eta
