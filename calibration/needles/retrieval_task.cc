#include "calibration/needles/retrieval_task.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/needles/needle_text.h"

namespace eta {
namespace {

constexpr int kMostValues = 4;
constexpr int kMostQuestions = 4;

// From `low` to `high`.
int Between(int low, int high, Draws& draws) {
  return low + static_cast<int>(draws.Below(static_cast<uint64_t>(high - low) + 1));
}

std::vector<NamedNumber> DrawNeedles(int count, Draws& draws) {
  std::vector<uint64_t> taken;
  std::vector<NamedNumber> needles;
  while (needles.size() < static_cast<size_t>(count)) {
    const uint64_t name = draws.Below(kNeedleNames);
    if (std::ranges::find(taken, name) != taken.end()) continue;
    taken.push_back(name);
    needles.push_back({NeedleName(name), NeedleNumber(draws.Below(kNeedleNumbers))});
  }
  return needles;
}

template <typename T>
void Shuffle(std::vector<T>& items, Draws& draws) {
  for (size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[static_cast<size_t>(draws.Below(i))]);
  }
}

RetrievalTask Keys(int count, Draws& draws) {
  RetrievalTask task;
  std::vector<NamedNumber> needles = DrawNeedles(count, draws);
  for (const NamedNumber& needle : needles) task.sentences.push_back(NeedleSentence(needle));
  Shuffle(needles, draws);
  needles.resize(static_cast<size_t>(std::min(count, kMostQuestions)));
  for (const NamedNumber& needle : needles) {
    task.questions.push_back({NeedleQuestion(needle.name), needle.number});
  }
  return task;
}

RetrievalTask Values(int count, Draws& draws) {
  RetrievalTask task;
  const std::string name = NeedleName(draws.Below(kNeedleNames));
  std::string answer;
  for (int i = 0; i < count; ++i) {
    const std::string number = NeedleNumber(draws.Below(kNeedleNumbers));
    task.sentences.push_back(NeedleSentence({name, number}));
    absl::StrAppend(&answer, i == 0 ? "" : (i + 1 < count ? ", " : " and "), number);
  }
  task.questions.push_back(
      {absl::StrCat("\nWhat are all the special magic numbers for ", name,
                    " mentioned in the text? The special magic numbers for ", name, " are:"),
       answer});
  return task;
}

RetrievalTask Hops(Draws& draws) {
  RetrievalTask task;
  const std::vector<NamedNumber> needles = DrawNeedles(4, draws);
  for (size_t pair = 0; pair < 4; pair += 2) {
    task.sentences.push_back(NeedleSentence(needles[pair]));
    task.sentences.push_back(absl::StrCat(" The special magic number for ", needles[pair + 1].name,
                                          " is the same as the one for ", needles[pair].name, "."));
  }
  Shuffle(task.sentences, draws);
  const auto asked = static_cast<size_t>(2 * draws.Below(2));
  task.questions.push_back({NeedleQuestion(needles[asked + 1].name), needles[asked].number});
  return task;
}

}  // namespace

RetrievalTask MakeRetrievalTask(RetrievalKind kind, int most_keys, Draws& draws) {
  switch (kind) {
    case RetrievalKind::kMultiKey:
      return Keys(Between(2, most_keys, draws), draws);
    case RetrievalKind::kMultiValue:
      return Values(Between(2, std::min(kMostValues, most_keys), draws), draws);
    case RetrievalKind::kTwoHop:
      return Hops(draws);
    case RetrievalKind::kSingle:
      break;
  }
  return Keys(1, draws);
}

}  // namespace eta
