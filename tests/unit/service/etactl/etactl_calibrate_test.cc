// What a user of `etactl calibrate` and `etactl profiles` sees: samples and targets as they are
// read, requests made of flags, tables.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "service/etactl/calibrate/calibrate.h"
#include "service/etactl/commands/profiles.h"
#include "service/etactl/input.h"
#include "service/etactl/view/profile_text.h"
#include "service/etactl/view/progress_text.h"
#include "service/etactl/view/text_table.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/base/text_proto.h"

namespace eta::ctl {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kPlenty = 1 << 20;

void Parse(CLI::App& app, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
}

absl::StatusOr<v1::CalibrateRequest> CalibrateRequestOf(std::vector<std::string> arguments) {
  CalibrateFlags flags;
  CLI::App app;
  AddCalibrateCommand(app, &flags);
  arguments.insert(arguments.begin(), "calibrate");
  Parse(app, std::move(arguments));
  const absl::StatusOr<CalibrateCall> call = MakeCalibrateCall(flags);
  if (!call.ok()) return call.status();
  return call->request;
}

ProfilesFlags ProfilesOf(std::vector<std::string> arguments) {
  ProfilesFlags flags;
  CLI::App app;
  AddProfilesCommand(app, &flags);
  arguments.insert(arguments.begin(), "profiles");
  Parse(app, std::move(arguments));
  return flags;
}

Sample Text(std::string text, std::string origin) {
  return {.text = std::move(text), .token_ids = {}, .origin = std::move(origin)};
}

std::string Refusal(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(EtactlSamples, AFolderGivesItsTextsByName) {
  const TempFolder folder;
  folder.Write("b.txt", "second");
  folder.Write("a.txt", "first\n");
  folder.Write("c.jsonl", "{\"text\": \"third\"}\n\n{\"token_ids\": [5, 6]}\r\n");
  folder.Write("README.md", "no sample");
  std::filesystem::create_directory(folder.path() + "/d.txt");
  const auto samples = ReadSamples({folder.path()}, kPlenty).value();
  const std::string at = folder.path() + "/";
  const Sample ids = {.text = "", .token_ids = {5, 6}, .origin = at + "c.jsonl:3"};
  EXPECT_EQ(samples,
            (std::vector<Sample>{Text("first\n", at + "a.txt"), Text("second", at + "b.txt"),
                                 Text("third", at + "c.jsonl:1"), ids}));
}

TEST(EtactlSamples, LinesMayBeOfOneDocument) {
  const TempFolder folder;
  const std::string file =
      folder.Write("a.jsonl",
                   "{\"text\": \"one\", \"document\": \"book\"}\n{\"token_ids\": [5], "
                   "\"document\": \"book\"}\n");
  const auto request =
      CalibrateRequestOf({"legal", "--samples", file, folder.Write("b.txt", "two")}).value();
  ASSERT_EQ(request.samples_size(), 3);
  EXPECT_EQ(request.samples(0).document(), "book");
  EXPECT_EQ(request.samples(1).document(), "book");
  EXPECT_EQ(request.samples(2).document(), "") << "a file is a document";
}

TEST(EtactlSamples, FilesAreTakenInTheirOrderWhateverTheirName) {
  const TempFolder folder;
  const std::string z = folder.Write("z", "one"), a = folder.Write("a.md", "two\0three");
  const auto samples = ReadSamples({z, a}, kPlenty).value();
  EXPECT_EQ(samples, (std::vector<Sample>{Text("one", z), Text("two\0three", a)}));
}

TEST(EtactlSamples, WhatCannotBeReadIsNamed) {
  const TempFolder folder;
  EXPECT_THAT(Refusal(ReadSamples({folder.path()}, kPlenty).status()), HasSubstr(folder.path()));
  EXPECT_THAT(Refusal(ReadSamples({"/nonexistent/texts"}, kPlenty).status()),
              HasSubstr("/nonexistent/texts"));
  for (const char* line :
       {"{\"text\": \"a\", \"document\": 3}", "{", "[1]", "{}", "{\"text\": 3}",
        "{\"text\": \"a\", \"token_ids\": [1]}", "{\"token_ids\": 1}", "{\"token_ids\": [-1]}",
        "{\"token_ids\": [1.5]}", "{\"token_ids\": [2147483648]}"}) {
    const std::string file =
        folder.Write("bad.jsonl", std::string("{\"text\": \"good\"}\n") + line + "\n");
    EXPECT_THAT(Refusal(ReadSamples({file}, kPlenty).status()), HasSubstr("bad.jsonl:2: ")) << line;
  }
}

TEST(EtactlSamples, AFolderGivenByMistakeIsNotReadWhole) {
  const TempFolder folder;
  folder.Write("a.txt", std::string(60, 'a'));
  folder.Write("b.txt", std::string(60, 'b'));
  EXPECT_TRUE(ReadSamples({folder.path()}, 120).ok());
  EXPECT_THAT(Refusal(ReadSamples({folder.path()}, 119).status()), HasSubstr("b.txt"));
}

TEST(EtactlTarget, HasSixForms) {
  EXPECT_TRUE(ParseTarget("dynamic-union-density")->has_dynamic_union_density());
  EXPECT_FALSE(
      ParseTarget("dynamic-union-density")->dynamic_union_density().has_max_perplexity_increase());
  EXPECT_EQ(
      ParseTarget("dynamic-union-density=1%")->dynamic_union_density().max_perplexity_increase(),
      1.0);
  EXPECT_TRUE(ParseTarget("match-dynamic")->has_match_dynamic());
  EXPECT_EQ(ParseTarget("head-density=0.3")->head_density(), 0.3);
  EXPECT_EQ(ParseTarget("union-density=0.35")->union_density(), 0.35);
  EXPECT_EQ(ParseTarget("retained-mass=0.95")->retained_mass(), 0.95);
  EXPECT_EQ(ParseTarget("max-perplexity-increase=1%")->max_perplexity_increase(), 1.0);
  EXPECT_EQ(ParseTarget("max-perplexity-increase=0.5")->max_perplexity_increase(), 0.5);
  EXPECT_EQ(ParseTarget("union_density=0.35")->union_density(), 0.35)
      << "as profile files spell it";
  EXPECT_EQ(ParseTarget("union-density=7")->union_density(), 7.0) << "limits are the server's";
}

TEST(EtactlTarget, RefusesAnythingElse) {
  for (const char* text : {"", "union", "union-density", "union-density=", "union-density=a",
                           "union-density=35%", "head-density=0.3x", "match-dynamic=1",
                           "max-perplexity-increase=%", "=0.3", "dynamic-union-density=",
                           "dynamic-union-density=a", "retained-mass", "retained-mass=95%"}) {
    EXPECT_THAT(Refusal(ParseTarget(text).status()), HasSubstr("--target: ")) << text;
  }
}

TEST(EtactlCalibrate, LeavesWhatWasNotGivenToTheServer) {
  const TempFolder folder;
  folder.Write("a.txt", "text");
  const auto request = CalibrateRequestOf({"legal", "--samples=" + folder.path()}).value();
  EXPECT_EQ(request.name(), "legal");
  EXPECT_FALSE(request.has_target()) << "what is best depends on the model";
  ASSERT_EQ(request.samples_size(), 1);
  EXPECT_EQ(request.samples(0).text(), "text");
  for (const bool present :
       {request.has_held_out(), request.has_z_recall(), request.has_offset(), request.has_z(),
        request.has_sequence_tokens(), request.has_expected_version(), request.has_request_id(),
        request.has_stage(), request.has_sink_blocks(), request.has_min_mass(),
        request.has_min_retrieval(), request.has_allow_loss(), request.has_confirm(),
        request.prefill() != v1::PREFILL_UNSPECIFIED}) {
    EXPECT_FALSE(present);
  }
  EXPECT_EQ(request.reads(), v1::READS_UNSPECIFIED);
  EXPECT_EQ(request.special_keys(), v1::SPECIAL_KEYS_UNSPECIFIED);
  EXPECT_EQ(request.floor(), v1::FLOOR_UNSPECIFIED);
}

TEST(EtactlCalibrate, SendsEverythingThatWasGiven) {
  const TempFolder folder;
  const std::string a = folder.Write("a", "1"), b = folder.Write("b.jsonl", "{\"token_ids\": [7]}");
  std::vector<std::string> words = absl::StrSplit(
      "legal --target=head-density=0.3 --z_recall=0.95 --held_out=0.5 --sequence_tokens=512 "
      "--offset=0 --z=0 --floor=none --label domain=legal --create_only --request_id=id-1 --stage "
      "--sink_blocks=2 --reads=shared --special_keys=temper --confirm=true --prefill=sparse "
      "--min_mass=0.75 --min_retrieval=0.875 --allow_loss",
      ' ');
  words.insert(words.end(), {"--label", "note=a=b, c", "--samples", a, b});
  EXPECT_THAT(CalibrateRequestOf(words).value(), ReadsAs(R"(
    name: "legal" samples { text: "1" } samples { token_ids { ids: 7 } }
    target { head_density: 0.3 } z_recall: 0.95 held_out: 0.5 sequence_tokens: 512
    offset: 0 z: 0 floor: FLOOR_NONE
    labels { key: "domain" value: "legal" } labels { key: "note" value: "a=b, c" }
    expected_version: 0 request_id: "id-1" stage: true
    sink_blocks: 2 reads: READS_SHARED special_keys: SPECIAL_KEYS_TEMPER confirm: true
    prefill: PREFILL_SPARSE min_mass: 0.75 min_retrieval: 0.875 allow_loss: true)"));
  EXPECT_EQ(CalibrateRequestOf({"x", "--samples", a, "--expected_version=4"})->expected_version(),
            4);
}

// bad input: etactl | `--confirm`, `--prefill` and other settings of a word that is none | one line
//   that names the flag; nothing is sent
TEST(EtactlCalibrate, RefusesWhatItCannotUnderstand) {
  const TempFolder folder;
  const std::string samples = "--samples=" + folder.Write("a", "1");
  EXPECT_FALSE(CalibrateRequestOf({"x", samples, "--label", "domain"}).ok());
  EXPECT_FALSE(CalibrateRequestOf({"x", samples, "--label", "=legal"}).ok());
  EXPECT_FALSE(CalibrateRequestOf({"x", samples, "--label", "a=1", "--label", "a=2"}).ok());
  EXPECT_FALSE(CalibrateRequestOf({"x", samples, "--target=half"}).ok());
  EXPECT_THROW((void)CalibrateRequestOf({"x"}), CLI::ParseError) << "no samples";
  EXPECT_THROW((void)CalibrateRequestOf({samples}), CLI::ParseError) << "no name";
  for (const auto& [flag, value] : {std::pair<std::string, std::string>("--floor", "flat"),
                                    {"--reads", "all"},
                                    {"--special_keys", "drop"},
                                    {"--confirm", "perhaps"},
                                    {"--prefill", "dense"}}) {
    try {
      (void)CalibrateRequestOf({"x", samples, flag + "=" + value});
      ADD_FAILURE() << flag;
    } catch (const CLI::ParseError& error) {
      EXPECT_THAT(error.what(), HasSubstr(flag));
    }
  }
  EXPECT_THROW((void)CalibrateRequestOf({"x", samples, "--create_only", "--expected_version=1"}),
               CLI::ParseError);
}

TEST(EtactlCalibrate, NamesTheFileOfASampleThatIsRefused) {
  const std::vector<std::string> origins = {"a.txt", "b.jsonl:7"};
  EXPECT_EQ(DescribeRefusedSample("samples[1].text", origins), "samples[1] is b.jsonl:7");
  EXPECT_EQ(DescribeRefusedSample("samples[0]", origins), "samples[0] is a.txt");
  for (const char* field : {"", "samples", "samples[2]", "samples[-1]", "samples[x]", "samples[1",
                            "target.union_density"}) {
    EXPECT_EQ(DescribeRefusedSample(field, origins), "") << field;
  }
}

TEST(EtactlCalibrate, ProgressLeavesOutWhatIsNotKnown) {
  v1::CalibrationProgress progress;
  progress.set_phase(v1::CALIBRATION_PHASE_SEARCH);
  progress.mutable_time_left();
  EXPECT_EQ(DescribeProgress(progress), "3/4 searching");
  progress.set_sequences_done(3);
  progress.set_sequences_total(12);
  progress.set_tokens_per_second(4120.4);
  progress.mutable_time_left()->set_seconds(21);
  EXPECT_EQ(DescribeProgress(progress),
            "3/4 searching, 3/12 sequences, 4120 tokens/s, about 21.0 s left");
}

TEST(EtactlProfiles, CommandsShareTheTimeout) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"list", "--timeout=2"}, {"--timeout=2", "list"}}) {
    const ProfilesFlags flags = ProfilesOf(arguments);
    EXPECT_EQ(flags.command, "list");
    EXPECT_EQ(flags.timeout_seconds, 2.0);
  }
}

TEST(EtactlProfiles, TakeNamesAliasesAndVersions) {
  EXPECT_EQ(ProfilesOf({"get", "legal@stable"}).reference, "legal@stable");
  EXPECT_EQ(ProfilesOf({"versions", "legal", "--json"}).name, "legal");
  const ProfilesFlags alias = ProfilesOf({"alias", "legal", "stable", "3", "--expected_version=2"});
  EXPECT_EQ(alias.command, "alias");
  EXPECT_EQ(alias.name + "@" + alias.alias, "legal@stable");
  EXPECT_EQ(alias.version, 3);
  EXPECT_EQ(alias.expected_version, 2);
  EXPECT_TRUE(ProfilesOf({"alias", "legal", "stable", "--remove"}).remove);
  EXPECT_EQ(ProfilesOf({"import", "-", "--name=copy"}).import_name, "copy");
  EXPECT_TRUE(ProfilesOf({"import", "-", "--stage"}).stage);
  const ProfilesFlags promote = ProfilesOf({"promote", "legal", "3", "--expected_version=2"});
  EXPECT_EQ(promote.command, "promote");
  EXPECT_EQ(promote.name, "legal");
  EXPECT_EQ(promote.version, 3);
  EXPECT_EQ(promote.expected_version, 2);
  EXPECT_EQ(ProfilesOf({"delete-version", "legal", "3"}).version, 3);
  EXPECT_EQ(ProfilesOf({"delete", "legal"}).expected_version, std::nullopt);
}

TEST(EtactlProfiles, RefuseWhatIsIncomplete) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {},
           {"burn"},
           {"get"},
           {"delete"},
           {"delete", "legal", "3"},
           {"delete-version", "legal"},
           {"promote", "legal"},
           {"promote", "legal", "stable"},
           {"alias", "legal"},
           {"alias", "legal", "stable", "three"},
           {"alias", "legal", "stable", "3", "--remove"},
           {"import", "f", "--create_only", "--expected_version=1"},
           {"list", "legal"}}) {
    EXPECT_THROW((void)ProfilesOf(arguments), CLI::ParseError) << arguments.size();
  }
}

TEST(EtactlTable, AlignsColumnsByCharacters) {
  EXPECT_EQ(TextTable({Align::kLeft, Align::kRight}, {{"a", "1"}, {"Gr\xC3\xB6\xC3\x9F", "22"}}),
            "a      1\n"
            "Gr\xC3\xB6\xC3\x9F  22\n");
  EXPECT_EQ(TextTable({Align::kLeft, Align::kLeft}, {{"a", ""}, {"b", "c"}}), "a\nb  c\n");
}

TEST(EtactlTable, CellsCannotBreakTheLineOrTheTerminal) {
  EXPECT_EQ(TextTable({Align::kLeft}, {{"a\nb\x1B[2J"}}), "a b\xEF\xBF\xBD[2J\n");
}

v1::Profile LegalProfile() {
  return FromText<v1::Profile>(R"(
    name: "legal" version: 3 create_time { seconds: 1700000000 }
    labels { key: "domain" value: "legal" }
    geometry { layers: 8 query_heads: 8 block_size: 64 }
    target { union_density: 0.35 } z: 1.5 floor: FLOOR_UNIFORM reached { union_density: 0.3504 }
    evidence {
      perplexity_full: 20 perplexity_dynamic: 19.5 perplexity_frozen: 20.1
      dynamic_head_density: 0.25 dynamic_union_density: 0.402 dynamic_recall: 0.987
      head_density: 0.23 union_density: 0.354 recall: 0.991
      calibration_sequences: 12 calibration_tokens: 24000
      held_out_sequences: 4 held_out_tokens: 8000
    })");
}

TEST(EtactlProfileText, ShowsBeforeAndAfter) {
  const std::string text = DescribeProfile(LegalProfile());
  for (const char* part : {"profile legal@3, made 2023-11-14 22:13:20 UTC", "labels: domain=legal",
                           "8 layers x 8 heads", "z 1.5, floor uniform",
                           "target: union density 0.35", "union density 0.350\n",
                           "12 sequences (24000 tokens), verified on 4 held out (8000 tokens)",
                           "full         20.000                  1.000          1.000   1.000\n",
                           "dynamic      19.500  -2.50 %         0.250          0.402   0.987\n",
                           "frozen       20.100  +0.50 %         0.230          0.354   0.991\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(EtactlProfileText, ShowsIntervalsAndDocuments) {
  v1::Profile profile = LegalProfile();
  EXPECT_THAT(DescribeProfile(profile), Not(HasSubstr("documents:")));
  EXPECT_THAT(DescribeProfile(profile), Not(HasSubstr("95 %")));
  v1::ProfileEvidence& evidence = *profile.mutable_evidence();
  evidence.mutable_increase_over_full()->set_low(-0.25);
  evidence.mutable_increase_over_full()->set_high(1.5);
  evidence.mutable_increase_over_dynamic()->set_low(2.0);
  evidence.mutable_increase_over_dynamic()->set_high(4.25);
  evidence.set_calibration_documents(8);
  evidence.set_held_out_documents(4);
  profile.mutable_target()->mutable_dynamic_union_density()->set_max_perplexity_increase(0.5);
  std::string text = DescribeProfile(profile);
  for (const char* part :
       {"target: the dynamic thresholds' union density, perplexity at most 0.5 % above theirs;",
        "documents: 8 calibrated on, 4 held out\n", "frozen to full: -0.25 to +1.50 % (95 %)\n",
        "frozen to dynamic: +2.00 to +4.25 % (95 %)\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  evidence.set_choice_documents(3);
  evidence.set_equal_documents(2);
  EXPECT_THAT(DescribeProfile(profile),
              HasSubstr("documents: 8 calibrated on, 3 chosen on, 4 held out; 2 left out, equal to "
                        "another\n"));
}

TEST(EtactlProfileText, TellsOfMassAndNeedles) {
  v1::Profile profile = LegalProfile();
  EXPECT_EQ(Verdict(profile),
            "reads 35 % of the cache, perplexity +0.50 %, no needles were hidden: retrieval was "
            "not judged; dynamic reads 40 %, -2.50 %");
  EXPECT_THAT(DescribeProfile(profile),
              EndsWith("\nno needles were hidden: retrieval was not judged\n"));
  v1::ProfileEvidence& evidence = *profile.mutable_evidence();
  evidence.mutable_increase_over_full()->set_low(0.2);
  evidence.mutable_increase_over_full()->set_high(1.0);
  evidence.set_retained_mass(0.957);
  evidence.set_retained_mass_p1(0.88);
  for (v1::NeedleHits* hits :
       {evidence.mutable_single_needles(), evidence.mutable_multi_needles()}) {
    hits->set_asked(6);
    hits->set_full(6);
    hits->set_frozen(6);
    hits->set_kept(6);
  }
  evidence.mutable_kept_needles()->set_low(0.757);
  evidence.mutable_kept_needles()->set_high(1.0);
  evidence.clear_dynamic_union_density();  // as of a model without a predictor
  EXPECT_EQ(Verdict(profile),
            "reads 35 % of the cache, perplexity +0.50 % (95 %: 0.20 to 1.00), mass kept 0.957 "
            "(p1 0.880), needles 12 of 12, kept 100 % (95 %: 76 to 100)");
  EXPECT_THAT(DescribeProfile(profile),
              HasSubstr("needles: single 6 of 6, multi 6 of 6; kept 100 % (95 %: 76 to 100)\n"));
  evidence.mutable_multi_needles()->set_frozen(4);
  evidence.mutable_multi_needles()->set_kept(3);
  EXPECT_THAT(Verdict(profile), HasSubstr("needles 10 of 12 (full attention 12), kept 75 % (95 %"));
  EXPECT_THAT(DescribeProfile(profile),
              HasSubstr("mass kept: 0.9570, 1st percentile 0.8800\n"
                        "needles: single 6 of 6, multi 4 of 6 (full attention 6); kept 75 % ("));
}

TEST(EtactlProfileText, TellsOfTheDivergenceWhereItWasMeasured) {
  v1::Profile profile = LegalProfile();
  EXPECT_THAT(DescribeProfile(profile), Not(HasSubstr("KL")));
  EXPECT_THAT(Verdict(profile), Not(HasSubstr("KL")));
  profile.mutable_evidence()->mutable_divergence()->set_nats(0.004123);
  profile.mutable_evidence()->mutable_divergence()->set_rows(1024);
  EXPECT_THAT(DescribeProfile(profile),
              HasSubstr("KL to full: 0.00412 nats per token, of 1024 rows\n"));
  EXPECT_THAT(Verdict(profile), HasSubstr("perplexity +0.50 %, KL 0.00412 nats, "));
}

TEST(EtactlProfileText, TellsOfNeedlesThatFullAttentionDidNotFind) {
  v1::Profile profile = LegalProfile();
  for (v1::NeedleHits* hits : {profile.mutable_evidence()->mutable_single_needles(),
                               profile.mutable_evidence()->mutable_multi_needles()}) {
    hits->set_asked(6);
    hits->set_frozen(1);
  }
  constexpr char kNone[] = "full attention found none of 12 needles: retrieval was not judged";
  EXPECT_EQ(Verdict(profile), std::string("reads 35 % of the cache, perplexity +0.50 %, ") + kNone +
                                  "; dynamic reads 40 %, -2.50 %");
  EXPECT_THAT(DescribeProfile(profile),
              EndsWith(std::string("multi 1 of 6 (full attention 0); ") + kNone + "\n"));
}

TEST(EtactlProfileText, TellsOfTooFewTokensForAVerdict) {
  v1::Profile profile = LegalProfile();
  EXPECT_THAT(Verdict(profile), Not(HasSubstr("unverified")));
  profile.mutable_evidence()->set_unverified(true);
  EXPECT_THAT(Verdict(profile),
              HasSubstr("perplexity +0.50 % (unverified: too few tokens for a verdict), "));
  EXPECT_THAT(DescribeProfile(profile),
              HasSubstr("12 sequences (24000 tokens), unverified on 4 held out (8000 tokens, too "
                        "few for a verdict):\n"));
}

TEST(EtactlProfileText, RecommendsDynamicAttentionWhereItDominates) {
  v1::Profile profile = LegalProfile();
  profile.mutable_evidence()->set_dynamic_dominates(true);
  constexpr char kAdvice[] =
      "; dynamic reads 40 %, -2.50 %: no more in either, so use dynamic attention without this "
      "profile";
  EXPECT_THAT(Verdict(profile), EndsWith(kAdvice));
  profile.set_staged(true);
  EXPECT_THAT(Verdict(profile), EndsWith(std::string(kAdvice) + ", which is staged"));
}

TEST(EtactlProfileText, RecommendsDynamicAttentionWhereAStagedProfileLosesNeedles) {
  v1::Profile profile = LegalProfile();
  for (v1::NeedleHits* hits : {profile.mutable_evidence()->mutable_single_needles(),
                               profile.mutable_evidence()->mutable_multi_needles()}) {
    hits->set_asked(6);
    hits->set_full(6);
    hits->set_frozen(5);
    hits->set_kept(4);
  }
  EXPECT_THAT(Verdict(profile), EndsWith("; dynamic reads 40 %, -2.50 %")) << "it was allowed";
  profile.set_staged(true);
  profile.mutable_target()->set_union_density(0.35);
  EXPECT_THAT(Verdict(profile), EndsWith("; dynamic reads 40 %, -2.50 %")) << "staged by --stage";
  profile.mutable_target()->mutable_dynamic_union_density();
  EXPECT_THAT(Verdict(profile),
              EndsWith("; dynamic reads 40 %, -2.50 %: the profile loses 4 needles, so use dynamic "
                       "attention without this profile, which is staged"));
}

TEST(EtactlProfileText, ShowsARelativeThreshold) {
  v1::Profile profile = LegalProfile();
  EXPECT_THAT(DescribeProfile(profile), HasSubstr("floor uniform, sink_blocks 0, confirm false\n"));
  profile.set_relative_threshold(-4.25f);
  profile.set_sink_blocks(1);
  profile.set_reads(v1::READS_SHARED);
  profile.set_min_mass(0.75f);
  profile.set_index("outlier");
  profile.set_kv_dtype("float16");
  profile.set_weights("int8");
  profile.mutable_target()->set_retained_mass(0.95);
  const std::string text = DescribeProfile(profile);
  EXPECT_THAT(text, HasSubstr("thresholds: relative, c -4.25, blocks of 64 tokens\n"
                              "calibrated on: index outlier, cache float16, weights int8\n"
                              "requests run with: offset 0, sink_blocks 1, reads shared, confirm "
                              "false, min_mass 0.75\n"
                              "target: at least 0.95 of full attention's mass; on the samples: "
                              "head density "));
  EXPECT_THAT(text, Not(HasSubstr("soft density")));
}

TEST(EtactlProfileText, LeavesOutWhatThereIsNot) {
  v1::Profile profile = LegalProfile();
  profile.mutable_evidence()->clear_dynamic_recall();
  EXPECT_THAT(DescribeProfile(profile), HasSubstr("0.402       -\n"));
  profile.mutable_labels()->clear();
  profile.mutable_evidence()->clear_perplexity_dynamic();
  profile.add_z_per_head(1.0f);
  profile.add_z_per_head(2.0f);
  std::string text = DescribeProfile(profile);
  EXPECT_THAT(text, Not(HasSubstr("labels")));
  EXPECT_THAT(text, Not(HasSubstr("dynamic")));
  EXPECT_THAT(text, HasSubstr("z per head (mean 1.50)"));
  profile.mutable_evidence()->set_held_out_sequences(0);
  text = DescribeProfile(profile);
  EXPECT_THAT(text, HasSubstr("not verified"));
  EXPECT_THAT(text, Not(HasSubstr("frozen")));
}

TEST(EtactlProfileText, ListsProfilesAndVersions) {
  v1::ProfileSummary summary;
  summary.set_name("legal");
  summary.set_version(12);
  summary.mutable_create_time()->set_seconds(1'700'000'000);
  summary.set_bytes(1234);
  EXPECT_EQ(ProfileTable({summary}),
            "profile  newest  made                       size  model\n"
            "legal        12  2023-11-14 22:13:20 UTC  1.2 kB  -\n");
  summary.set_model_fingerprint("0123456789abcdef");
  summary.add_aliases("stable");
  summary.add_aliases("tested");
  v1::ProfileSummary staged = summary;
  staged.set_version(13);
  staged.set_staged(true);
  staged.clear_aliases();
  EXPECT_EQ(VersionTable({staged, summary}),
            "    version  made                       size  model         aliases\n"
            "13 (staged)  2023-11-14 22:13:20 UTC  1.2 kB  0123456789ab\n"
            "         12  2023-11-14 22:13:20 UTC  1.2 kB  0123456789ab  stable, tested\n");
}

}  // namespace
}  // namespace eta::ctl
