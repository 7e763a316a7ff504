// Every allocation, every read of a file and every allocation on the device fails once, in turn:
// no crash, no hang, nothing leaked (in a build with LeakSanitizer), nothing half done, and the
// code that says so.
#include <cstdio>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "calibration/profiles/profile_json.h"
#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/batching/drafts/suffix_index.h"
#include "engine/chat/chat_template.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "kernels/system/failpoint.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/tiny_gguf.h"
#include "tests/testing/faults/failing_memory.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta::testing {
namespace {

// A bit of everything that holds memory.
constexpr char kTemplate[] =
    "{% set ns = namespace(seen=[], self=none) %}{% set ns.self = [ns] %}"
    "{% macro turn(m, end='<|end|>') %}<|{{ m.role }}|>{{ m.content|trim }}{{ end }}{% endmacro %}"
    "{% for m in messages if m.content is string %}"
    "{{ turn(m) ~ loop.index }}{% filter upper %}{{ m.role }}{% endfilter %}"
    "{% set ns.seen = ns.seen + [m.content.split(' ')|first|upper] %}"
    "{% set x %}{{ ns.seen|sort|join(', ') }}{% endset %}{{ x|length }}"
    "{% endfor %}"
    "{{ tools|map(attribute='name')|list }}{{ tools|tojson(indent=2) }}"
    "{{ '{}'.format(tools) }}{{ {'a': 1}.items()|list }}";

class NthFailure : public ::testing::Test {
 protected:
  EngineOptions Options() const {
    EngineOptions options = OptionsFor(model_);
    options.kv_pool_bytes = int64_t{1} << 20;
    return options;
  }
  const TinyModel model_{{.num_layers = 1, .shards = 2}};
};

TEST_F(NthFailure, AllocationWhileATextIsIndexedForDrafts) {
  std::vector<int32_t> first(256), more(10'000);
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<int32_t>(i % 100);
  const auto index_all = [&]() -> absl::Status {
    SuffixIndex index;
    RETURN_IF_ERROR(index.Append(first));
    const absl::Status status = index.Append(more);
    if (status.ok()) return status;
    int32_t draft = -1;
    EXPECT_EQ(index.size(), 256) << "it is as it was";
    EXPECT_EQ(index.Propose({&draft, 1}), SuffixIndex::kLongestMatch);
    EXPECT_EQ(draft, 56);
    return status;
  };
  EXPECT_EQ(FailEachAllocation(index_all), 6) << "three for each size";
}

TEST_F(NthFailure, AllocationWhileACheckpointIsOpened) {
  EXPECT_GT(FailEachAllocation([this] { return Checkpoint::Open(model_.path()).status(); }), 20);
}

TEST_F(NthFailure, AllocationWhileAGgufFileIsOpenedAndRead) {
  const TempFolder folder(FastParent());
  TinyGguf tiny({.num_layers = 1});
  for (const bool byte_level : {false, true}) {
    if (byte_level) UseByteLevelVocabulary(tiny.file);
    const std::string path = folder.Write("tiny.gguf", tiny.file.Serialize());
    EXPECT_GT(FailEachAllocation([&] { return Checkpoint::Open(path).status(); }), 20);
    const auto checkpoint = Checkpoint::Open(path).value();
    EXPECT_GT(FailEachAllocation([&] {
                return checkpoint.Read("model.layers.0.self_attn.q_proj.weight").status();
              }),
              2);
    EXPECT_GT(FailEachAllocation([&] {
                return checkpoint.ReadStored("model.layers.0.self_attn.q_proj.weight").status();
              }),
              1);
  }
}

TEST_F(NthFailure, AllocationWhileATokenizerIsLoadedAndUsed) {
  const auto checkpoint = Checkpoint::Open(model_.path()).value();
  const auto config = ParseModelConfig(checkpoint.config_json()).value();
  FailEachAllocation(
      [&] { return Tokenizer::Load(checkpoint.tokenizer_files(), config).status(); });
  const auto tokenizer = Tokenizer::Load(checkpoint.tokenizer_files(), config).value();
  EXPECT_GT(FailEachAllocation([&] {
              return tokenizer->Encode("The quick brown fox \xe2\x82\xac", true).status();
            }),
            3);
}

TEST_F(NthFailure, AllocationWhileATemplateIsReadAndAChatRendered) {
  EXPECT_GT(FailEachAllocation([] {
              return ChatTemplate::Parse(kTemplate, {"<s>", "</s>"}).status();
            }),
            20);
  const auto made = ChatTemplate::Parse(kTemplate, {.bos = "<s>", .eos = "</s>"}).value();
  const Chat chat{.messages = {{.role = "user", .content = "Good day to you, all of you here"},
                               {.role = "assistant", .content = "And to you"}},
                  .variables_json = R"({"tools": [{"name": "f", "list": [1, 2.5, null, "é"]}]})"};
  EXPECT_GT(FailEachAllocation([&] { return made->Render(chat).status(); }), 20);
  ASSERT_TRUE(made->Render(chat).ok());
}

TEST_F(NthFailure, AllocationWhileAProfileBecomesJsonAndComesBack) {
  const PortableProfile profile{
      .name = "legal", .version = 1, .create_time_us = 1, .content = MakeContent(1)};
  EXPECT_GT(FailEachAllocation([&] { return ProfileToJson(profile).status(); }), 20);
  const std::string json = ProfileToJson(profile).value();
  EXPECT_GT(FailEachAllocation([&] { return ProfileFromJson(json).status(); }), 20);
}

// What was acknowledged is there, whole; what was not is not half there; the store goes on.
TEST_F(NthFailure, AllocationInTheStore) {
  const TempFolder folder(FastParent());
  const auto opened = OpenProfileStore(folder.path() + "/profiles.db", {}).value();
  ProfileStore& store = *opened;
  int64_t newest = 0;
  uint32_t seed = 0;
  FailEachAllocation([&] {
    const auto stored = store.Put(kAcme, MakePut("legal", ++seed));
    if (stored.ok()) newest = (*stored)->version;
    return stored.status();
  });
  const int64_t there = store.Get(kAcme, "legal", Newest()).value()->version;
  EXPECT_GE(there, newest);
  for (int64_t version = 1; version <= there; ++version) {
    EXPECT_TRUE(store.Get(kAcme, "legal", version).ok()) << "no version is missing or damaged";
  }
  EXPECT_GT(FailEachAllocation([&] { return store.Get(kAcme, "legal", Newest()).status(); }), 20);
  EXPECT_GT(FailEachAllocation([&] { return store.List(kAcme, {}).status(); }), 20);
  FailEachAllocation(
      [&] { return store.SetAlias(kAcme, {.name = "legal", .alias = "live", .version = 1}); });
  EXPECT_EQ((*store.Get(kAcme, "legal", std::string("live")))->version, 1);
  EXPECT_EQ((*store.Put(kAcme, MakePut("legal", 1)))->version, there + 1);
  EXPECT_TRUE(store.Health().ok()) << store.Health();
}

TEST_F(NthFailure, AllocationWhileAStoreIsOpened) {
  int attempt = 0;
  const TempFolder folder(FastParent());
  FailEachAllocation([&] {
    const auto store = OpenProfileStore(folder.path() + "/" + std::to_string(++attempt) + ".db",
                                        {.poll_interval = std::chrono::hours(1)});
    return store.status();
  });
  // A file that was begun and not finished is finished by the next who opens it.
  for (int i = 1; i < attempt; ++i) {
    const auto store = OpenProfileStore(folder.path() + "/" + std::to_string(i) + ".db", {});
    EXPECT_TRUE(store.value()->Put(kAcme, MakePut("legal", 1)).ok());
  }
}

TEST_F(NthFailure, AllocationInSubmit) {
  const auto engine = Start(Options());
  FailEachAllocation([&] {
    auto recorder = std::make_shared<Recorder>();
    const auto handle = Submit(*engine, Greedy(Prompt(40, 1), 2), recorder);
    if (handle.ok()) recorder->Wait();
    return handle.status();
  });
  WaitUntilIdle(*engine);
  EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  EXPECT_TRUE(Ask(*engine, Greedy(Prompt(40, 1), 2)).status.ok());
}

// In the step thread and its helpers: whoever waits is told, and the engine says that the process
// must end.
TEST_F(NthFailure, AllocationInAStep) {
  int64_t struck = 0;
  for (int64_t n = 1;; n = NextToFail(n)) {
    SCOPED_TRACE(n);
    const auto engine = Start(Options());
    FailAllocation(n, Threads::kOthers);
    std::vector<std::shared_ptr<Recorder>> recorders;
    for (uint32_t i = 0; i < 3; ++i) {
      recorders.push_back(Submit(*engine, Greedy(Prompt(20 + 20 * i, i), 3)));
    }
    std::vector<Recorder::Answer> answers;
    for (const auto& recorder : recorders) answers.push_back(recorder->Wait());
    const bool failed = EndFailedAllocation();
    if (failed) ++struck;
    engine->Drain(Clock::now());
    const bool ended = engine->Snapshot().out_of_memory;
    for (const Recorder::Answer& answer : answers) {
      if (answer.status.ok()) {
        EXPECT_TRUE(answer.finished.has_value());
      } else {
        EXPECT_TRUE(ended);
        EXPECT_TRUE(absl::IsResourceExhausted(answer.status) || absl::IsUnavailable(answer.status))
            << answer.status;
      }
    }
    if (!failed) {
      EXPECT_FALSE(ended);
      break;
    }
  }
  EXPECT_GT(struck, 20);
}

#ifdef ETA_FAILPOINTS
class NthFailpoint : public NthFailure {
 protected:
  ~NthFailpoint() override { DisarmFailpoints(); }

  // Each pass of `point` in `work` fails once, in turn; returns the statuses.
  static std::vector<absl::Status> FailEach(Failpoint point,
                                            const std::function<absl::Status()>& work) {
    std::vector<absl::Status> statuses;
    for (int64_t n = 0;; ++n) {
      const int64_t before = FailpointStrikes(point);
      ArmFailpoint(point, {.after = n, .times = 1});
      const absl::Status status = work();
      DisarmFailpoints();
      if (FailpointStrikes(point) == before) {
        EXPECT_TRUE(status.ok()) << status;
        return statuses;
      }
      statuses.push_back(status);
    }
  }
};

TEST_F(NthFailpoint, ReadOrOpenOfACheckpoint) {
  for (const Failpoint point : {Failpoint::kFileOpen, Failpoint::kFileRead}) {
    const auto statuses = FailEach(point, [this] { return Engine::Create(Options()).status(); });
    EXPECT_GE(statuses.size(), 5u);
    for (const absl::Status& status : statuses) {
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("file '"));
    }
  }
}

TEST_F(NthFailpoint, AllocationOnTheDevice) {
  const auto statuses =
      FailEach(Failpoint::kDeviceAllocate, [this] { return Engine::Create(Options()).status(); });
  EXPECT_GE(statuses.size(), 10u);
  for (const absl::Status& status : statuses)
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

// What a step needs beside the cache and the weights grows with the first steps of their kind.
// Short steps are all that was tried before the engine listens: what long prompts need comes later.
TEST_F(NthFailpoint, AllocationOnTheDeviceInAStep) {
  const TinyModel model({.num_layers = 1, .head_dim = 64});
  EngineOptions options = OptionsFor(model);
  if (options.backend.name != "cuda") {
    GTEST_SKIP() << "only steps on a GPU take device memory (ETA_TEST_BACKEND=cuda)";
  }
  options.prefix_cache = false;
  options.kv_pool_bytes = int64_t{8} << 20;
  options.kv_dtype = DType::kFloat8E4M3;  // widened for prefill
  options.max_running = 4;
  options.max_step_tokens = 16;
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 4; ++i) requests.push_back(Greedy(Prompt(30 + 150 * i, i), 20));
  const auto alone = Ask(*Start(options), requests[3]);
  ASSERT_TRUE(alone.finished) << alone.status;
  for (int64_t n = 0;; ++n) {
    SCOPED_TRACE(n);
    const auto engine = Start(options);
    const int64_t before = FailpointStrikes(Failpoint::kDeviceAllocate);
    ArmFailpoint(Failpoint::kDeviceAllocate, {.after = n, .times = 1});
    int lost = 0;
    for (const Recorder::Answer& answer : AskTogether(*engine, requests)) {
      if (answer.finished) {
        EXPECT_EQ(answer.ids.size(), 20u);
        continue;
      }
      ++lost;
      EXPECT_TRUE(absl::IsUnavailable(answer.status)) << answer.status;
      EXPECT_EQ(GetErrorDetail(answer.status).reason, "DEVICE_ERROR");
    }
    DisarmFailpoints();
    EXPECT_FALSE(engine->Snapshot().device_lost);
    EXPECT_EQ(Ask(*engine, requests[3]).ids, alone.ids) << "nothing of the failed step is left";
    if (FailpointStrikes(Failpoint::kDeviceAllocate) == before) {
      EXPECT_EQ(lost, 0);
      std::printf("%lld allocations\n", static_cast<long long>(n));
      EXPECT_GE(n, 4) << "steps should have taken memory";
      break;
    }
    EXPECT_EQ(lost, 1);
  }
}
#endif

}  // namespace
}  // namespace eta::testing
