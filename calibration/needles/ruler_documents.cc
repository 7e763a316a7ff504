// Questions on documents (RULER, section 3.4). RULER takes them from SQuAD and HotpotQA, which this
// repository may not bundle, and which models have read in training. In their place the documents
// are paragraphs of the text, each with one sentence on people or places that are made up: so the
// answer stands in the documents alone, and every other document has one of its kind.

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/substitute.h"
#include "calibration/needles/ruler_form.h"
#include "calibration/needles/ruler_haystack.h"
#include "calibration/needles/ruler_words.h"

namespace eta {
namespace {

constexpr int32_t kDocumentOutput = 32;

// What ties a person ($1) to a town ($0), and who that is.
struct TownFact {
  const char* statement;
  const char* person;
};
constexpr TownFact kTownFacts[] = {
    {"The harbor of $0 was built by $1.", "the builder of the harbor of $0"},
    {"The first newspaper of $0 was founded by $1.", "the founder of the first newspaper of $0"},
    {"The old library of $0 belonged to $1.", "the owner of the old library of $0"},
    {"The great bell of $0 was cast by $1.", "the maker of the great bell of $0"},
};
// What ties a town ($1) to a person ($0), and the question for it.
struct PersonFact {
  const char* statement;
  const char* question;
};
constexpr PersonFact kPersonFacts[] = {
    {"$0 grew up in the town of $1.", "In which town did $0 grow up?"},
    {"$0 opened a school in the town of $1.", "In which town did $0 open a school?"},
    {"$0 was married in the town of $1.", "In which town was $0 married?"},
    {"$0 bought a mill in the town of $1.", "In which town did $0 buy a mill?"},
};

struct DocumentQuestion {
  std::vector<std::string> facts;  // as many as hops
  std::string question;
  std::string answer;
};

std::string NextName(WordDraws& words) {
  std::string name = words.Next();
  name.front() = absl::ascii_toupper(name.front());
  return name;
}

DocumentQuestion DrawDocumentQuestion(size_t hops, WordDraws& words, Draws& draws) {
  const TownFact& first = kTownFacts[draws.Below(std::size(kTownFacts))];
  const PersonFact& last = kPersonFacts[draws.Below(std::size(kPersonFacts))];
  const std::string town = NextName(words);
  std::string person = NextName(words);
  absl::StrAppend(&person, " ", NextName(words));
  DocumentQuestion drawn = {.answer = NextName(words)};
  if (hops > 1) drawn.facts.push_back(absl::Substitute(first.statement, town, person));
  drawn.facts.push_back(absl::Substitute(last.statement, person, drawn.answer));
  drawn.question =
      absl::Substitute(last.question, hops > 1 ? absl::Substitute(first.person, town) : person);
  return drawn;
}

// The documents that the haystack is made of: paragraphs with a fact each.
class FactDocuments {
 public:
  FactDocuments(const RulerText& text, DocumentQuestion asked, std::vector<uint64_t> depths,
                WordDraws words, Draws draws)
      : text_(text),
        asked_(std::move(asked)),
        depths_(std::move(depths)),
        words_(std::move(words)),
        draws_(draws),
        begin_(draws_.Below(std::max<size_t>(text.paragraphs.size(), 1))) {}

  std::string Join(size_t documents) {
    while (others_.size() < documents) AddOthers();
    std::vector<PlacedFact> facts(others_.begin(),
                                  others_.begin() + static_cast<std::ptrdiff_t>(documents));
    const size_t others = documents - depths_.size();
    for (size_t i = 0; i < depths_.size(); ++i) {
      facts[depths_[i] * others / (kRulerDepths - 1) + i].fact = asked_.facts[i];
    }
    std::string joined;
    for (size_t i = 0; i < documents; ++i) {
      absl::StrAppend(&joined, i == 0 ? "" : "\n\n", "Document ", i + 1, ":\n",
                      ParagraphWith(i, facts[i]));
    }
    return joined;
  }

 private:
  struct PlacedFact {
    std::string fact;
    uint64_t place = 0;  // taken modulo the places of its paragraph
  };

  void AddOthers() {
    for (std::string& fact : DrawDocumentQuestion(asked_.facts.size(), words_, draws_).facts) {
      others_.push_back({std::move(fact), draws_.Below(1 << 16)});
    }
  }

  // Between two of its sentences, at its beginning or at its end.
  std::string ParagraphWith(size_t document, const PlacedFact& fact) const {
    const RulerText::Paragraph& paragraph =
        text_.paragraphs[(begin_ + document) % text_.paragraphs.size()];
    const auto sentence = text_.sentences.begin();
    std::vector<std::string> sentences(sentence + static_cast<std::ptrdiff_t>(paragraph.begin),
                                       sentence + static_cast<std::ptrdiff_t>(paragraph.end));
    const size_t place = fact.place % (sentences.size() + 1);
    sentences.insert(sentences.begin() + static_cast<std::ptrdiff_t>(place), fact.fact);
    return absl::StrJoin(sentences, " ");
  }

  const RulerText& text_;
  DocumentQuestion asked_;
  std::vector<uint64_t> depths_;
  WordDraws words_;
  Draws draws_;
  size_t begin_;                    // the first document's paragraph
  std::vector<PlacedFact> others_;  // of documents that do not hold the answer
};

}  // namespace

RulerForm DocumentsForm(size_t hops, RulerSource source) {
  WordDraws words({}, source.units);
  Draws& draws = source.question;
  DocumentQuestion asked = DrawDocumentQuestion(hops, words, draws);
  Shuffle(asked.facts, draws);
  std::vector<uint64_t> depths = DrawDepths(hops, draws);
  const std::string question = asked.question;
  const std::string answer = asked.answer;
  FactDocuments documents(source.text, std::move(asked), std::move(depths), std::move(words),
                          draws);
  constexpr const char* kInstruction =
      "Answer the question based on the given documents. Only give me the answer and do not output "
      "any other words.\n\n";
  return {.prompt =
              [=](size_t units) mutable {
                return absl::StrCat(kInstruction, "The following are given documents.\n\n",
                                    documents.Join(units), "\n\n", kInstruction,
                                    "Question: ", question, " Answer:");
              },
          .least_units = hops + 1,
          .most_units = source.text.paragraphs.size(),
          .answers = {answer},
          .any = true,
          .max_tokens = kDocumentOutput};
}

}  // namespace eta
