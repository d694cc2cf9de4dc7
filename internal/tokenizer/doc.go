// Package tokenizer turns text into token ids and back.
//
// It implements byte-pair encoding in the three flavours that GGUF files of the
// supported models use: byte-level BPE ("gpt2": Qwen, Llama 3, GPT-2), where
// text is cut into word-like pieces by a hand-written splitter and every byte is
// a symbol; Gemma 4's ("gemma4"), where a whole line is one piece, a space is
// written U+2581 and characters without a token fall back to byte tokens; and
// SentencePiece's ("llama": Llama 2, Mistral), written in the same way, where a
// whole text is one piece and of all pairs that spell a token the one of the
// highest score merges.
//
//	f, err := gguf.Open("model.gguf")
//	tok, err := tokenizer.FromGGUF(f)
//	ids := tok.Encode("Hello", tokenizer.EncodeOptions{AddSpecial: true})
//	text := tok.Decode(ids, tokenizer.DecodeOptions{Opens: true})
//
// Text is bytes: invalid UTF-8 is accepted and comes back unchanged. The one
// exception belongs to the vocabularies with U+2581: in the input it decodes to a
// space. Most SentencePiece vocabularies want a space in front of text, at the
// beginning and after special tokens; Encode adds it and Decode leaves it out, at
// the beginning when DecodeOptions.Opens says that it is one.
//
// A Tokenizer is immutable after construction, keeps no reference to the file it
// came from, and may be used by many goroutines at once. A Stream belongs to one
// goroutine. Encoding takes time proportional to n log n for the longest piece
// and n otherwise, whatever the input.
//
// Character classes come from the standard library's unicode tables (version
// 15.0); letters assigned later are split like symbols.
package tokenizer
