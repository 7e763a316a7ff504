#include "engine/checkpoint/gguf/gguf_pre_tokenizers.h"

namespace eta {
namespace {

// Cut as GPT-2's.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kEachDigit = R"(\p{N})";
constexpr std::string_view kDigitRuns = R"(\p{N}+)";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Of LLaMA 3's, but each digit is cut off.
constexpr std::string_view kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                                    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1})"
    R"(| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Where a file names none.
constexpr std::string_view kDefaultPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view kFalconPunctuation = R"([\p{P}\$\+<=>\^~\|`]+)";

// DeepSeek's. The letters are those with a case.
constexpr std::string_view kLineEnds = R"([\r\n])";
constexpr std::string_view kCasedLetters =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF})"
    R"(\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D})"
    R"(\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5})"
    R"(\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5})"
    R"(\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15})"
    R"(\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59})"
    R"(\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE})"
    R"(\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB})"
    R"(\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107})"
    R"(\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128})"
    R"(\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149})"
    R"(\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE})"
    R"(\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06})"
    R"(\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F})"
    R"(\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr std::string_view kLetters = R"(\s?\p{L}+)";
constexpr std::string_view kPunctuation = R"(\s?\p{P}+)";
constexpr std::string_view kWidePunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr std::string_view kSpacesAtEnd = R"(\s+$)";
constexpr std::string_view kEastAsian = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr std::string_view kUpToThreeDigits = R"(\p{N}{1,3})";
constexpr std::string_view kChineseJapanese =
    R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
    R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct NamedPreTokenizer {
  std::string_view name;
  PreTokenizer cuts;
};

constexpr PreTokenizer kGpt2Cuts = {.patterns = {kGpt2}};
constexpr PreTokenizer kDigitCuts = {.patterns = {kEachDigit, kGpt2}};
constexpr PreTokenizer kLlama3Cuts = {
    .patterns = {kLlama3}, .ignore_merges = true, .adds_bos = true};
constexpr PreTokenizer kLlama3WithMerges = {.patterns = {kLlama3}};
constexpr PreTokenizer kQwen2Cuts = {.patterns = {kQwen2}};
constexpr PreTokenizer kDeepSeek3Cuts = {
    .patterns = {kUpToThreeDigits, kChineseJapanese, kDeepSeek3}};

// The names are llama.cpp's (llama-vocab.cpp). Where it adapts a pattern to its own engine, the one
// of the model's tokenizer.json stands here.
constexpr NamedPreTokenizer kPreTokenizers[] = {
    {"default", {.patterns = {kDefaultPunctuation, kGpt2, kDigitRuns, kThreeDigits}}},
    {"gpt-2", kGpt2Cuts},
    {"mpt", kGpt2Cuts},
    {"olmo", kGpt2Cuts},
    {"jais", kGpt2Cuts},
    {"mellum", kGpt2Cuts},
    {"trillion", kGpt2Cuts},
    {"smollm", kDigitCuts},
    {"starcoder", kDigitCuts},
    {"refact", kDigitCuts},
    {"command-r", kDigitCuts},
    {"codeshell", kDigitCuts},
    {"minerva-7b", kDigitCuts},
    {"llama3", kLlama3Cuts},
    {"llama-v3", kLlama3Cuts},
    {"llama-bpe", kLlama3Cuts},
    {"falcon3", kLlama3Cuts},
    {"pixtral", kLlama3Cuts},
    {"dbrx", kLlama3WithMerges},
    {"smaug-bpe", kLlama3WithMerges},
    // Qwen's tokenizers compose characters first.
    {"qwen2", {.patterns = {kQwen2}, .composes_characters = true}},
    {"deepseek-r1-qwen", kQwen2Cuts},
    {"megrez", kQwen2Cuts},
    {"stablelm2", kQwen2Cuts},
    {"hunyuan", kQwen2Cuts},
    {"seed-coder", {.patterns = {kSeedCoder}}},
    {"tekken", {.patterns = {kTekken}, .ignore_merges = true, .adds_bos = true}},
    {"gpt-4o", {.patterns = {kGpt4o}}},
    {"llama4", {.patterns = {kGpt4o}}},
    {"falcon", {.patterns = {kFalconPunctuation, kGpt2, kThreeDigits}}},
    {"deepseek-llm",
     {.patterns = {kLineEnds, kCasedLetters, kWidePunctuation, kSpacesAtEnd, kEastAsian,
                   kDigitRuns}}},
    {"deepseek-coder", {.patterns = {kLineEnds, kLetters, kPunctuation, kEastAsian, kEachDigit}}},
    {"deepseek-v3", kDeepSeek3Cuts},
    {"hunyuan-dense", kDeepSeek3Cuts},
};

}  // namespace

const PreTokenizer* FindPreTokenizer(std::string_view name) {
  for (const NamedPreTokenizer& named : kPreTokenizers) {
    if (named.name == name) return &named.cuts;
  }
  return nullptr;
}

std::string_view FindPreTokenizerName(const PreTokenizer& cuts) {
  for (const NamedPreTokenizer& named : kPreTokenizers) {
    if (named.cuts.patterns == cuts.patterns && named.cuts.ignore_merges == cuts.ignore_merges &&
        named.cuts.composes_characters == cuts.composes_characters) {
      return named.name;
    }
  }
  return {};
}

constexpr std::string_view kByteLevelPattern = kGpt2;
constexpr std::string_view kEachDigitPattern = kEachDigit;

}  // namespace eta
