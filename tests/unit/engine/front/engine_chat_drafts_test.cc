// Drafts of a chat's answer come from all of its turns.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/batching/drafts/draft_length.h"
#include "engine/format/answer_guide.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/engine_run.h"

namespace eta {
namespace {

// A format that only these tokens fit, so that the answer is known.
class ForcedIds final : public CompiledFormat {
 public:
  explicit ForcedIds(std::vector<int32_t> ids) : ids_(std::move(ids)) {}

  const AnswerFormat& format() const override { return format_; }
  std::unique_ptr<AnswerGuide> NewGuide(bool /*in_reasoning*/) const override {
    return std::make_unique<Guide>(ids_);
  }
  absl::Status Check(std::string_view /*answer*/) const override { return absl::OkStatus(); }
  size_t bytes() const override { return 0; }

 private:
  class Guide final : public AnswerGuide {
   public:
    explicit Guide(const std::vector<int32_t>& ids) : ids_(ids) {}

    bool Fill(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0);
      if (Complete()) return true;
      mask[static_cast<size_t>(ids_[at_]) / 32] |= 1u << (ids_[at_] % 32);
      return true;
    }
    bool Accept(int32_t token) override {
      if (Complete() || token != ids_[at_]) return false;
      ++at_;
      return true;
    }
    void Rollback(int32_t count) override { at_ -= static_cast<size_t>(count); }
    bool Complete() const override { return at_ == ids_.size(); }
    absl::Status failure() const override { return absl::OkStatus(); }

   private:
    const std::vector<int32_t>& ids_;
    size_t at_ = 0;
  };

  std::vector<int32_t> ids_;
  AnswerFormat format_;
};

class EngineChatDraftsTest : public ::testing::Test {
 protected:
  // Two turns, and a third that asks for what the first one said; its answer is those tokens.
  Request AsksAgain(Speculation speculation) {
    const std::string story =
        "The keeper of the lighthouse wrote nine letters to his brother in the north, and sealed "
        "each of them with green wax; only the fourth one, about the storm, ever arrived.";
    Request request = testing::Greedy({}, 24);
    request.prompt = Chat{.messages = {{.role = "user", .content = story},
                                       {.role = "assistant", .content = "What a pity."},
                                       {.role = "user", .content = "Say it once more."}}};
    const auto prepared = engine_->Prepare(request);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    const auto begin = prepared->prompt.begin() + 6;  // within the story
    said_.assign(begin, begin + 24);
    request.format = std::make_shared<ForcedIds>(said_);
    request.speculation = speculation;
    return request;
  }

  const testing::TinyModel model_{{.chat_template = testing::kTinyChatTemplate}};
  const std::unique_ptr<Engine> engine_ = testing::Start(testing::OptionsFor(model_));
  std::vector<int32_t> said_;
};

TEST_F(EngineChatDraftsTest, ComeFromEarlierTurns) {
  const auto answer = testing::Ask(*engine_, AsksAgain(Speculation::kPrompt));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids, said_);
  // At least the first draft, of those tokens that follow where the answer was found. How many
  // more there are follows from what rows cost here.
  EXPECT_GE(answer.finished->drafts.accepted, DraftLength::kShort);
  EXPECT_EQ(answer.finished->drafts.steps_saved, answer.finished->drafts.accepted);
}

TEST_F(EngineChatDraftsTest, AreNotMadeWhereTheRequestWantsNone) {
  const auto answer = testing::Ask(*engine_, AsksAgain(Speculation::kOff));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids, said_);
  EXPECT_EQ(answer.finished->drafts, DraftCounts());
}

}  // namespace
}  // namespace eta
