// What the packets between the server, its helper process of formats, and that one's children are.
#pragma once

namespace eta {

// Server to helper.
inline constexpr char kVocabularyPart = 'v';
inline constexpr char kVocabularyEnd = 'V';
// With the socket of one compilation, and its milliseconds as a number (byte_text.h).
inline constexpr char kCompile = 'C';

// Over the socket of one compilation. Server to child:
inline constexpr char kFormatPart = 'f';
inline constexpr char kFormatEnd = 'F';
// Child to server:
inline constexpr char kResultPart = 'r';
inline constexpr char kResultEnd = 'R';
inline constexpr char kInvalid = 'I';  // why the format is refused
inline constexpr char kNoMemory = 'M';
// Helper to server, of a child that did not end by itself:
inline constexpr char kTooSlow = 'T';
inline constexpr char kTooLarge = 'L';
inline constexpr char kFailed = 'X';  // a signal, as text

// With which a child ends that has no memory even to say so.
inline constexpr int kExitNoMemory = 3;

}  // namespace eta
