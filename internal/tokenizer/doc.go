// Package tokenizer turns text into token ids and back.
//
// It implements byte-pair encoding in the two flavours that GGUF files of the
// supported models use: byte-level BPE ("gpt2": Qwen, Llama 3, GPT-2), where
// text is cut into word-like pieces by a hand-written splitter and every byte is
// a symbol, and Gemma 4's ("gemma4"), where a whole line is one piece, a space is
// written U+2581 and characters without a token fall back to byte tokens.
//
//	f, err := gguf.Open("model.gguf")
//	tok, err := tokenizer.FromGGUF(f)
//	ids := tok.Encode("Hello", tokenizer.EncodeOptions{AddSpecial: true})
//	text := tok.Decode(ids, tokenizer.DecodeOptions{})
//
// Text is bytes: invalid UTF-8 is accepted and comes back unchanged. The one
// exception is Gemma's own: U+2581 in the input decodes to a space.
//
// A Tokenizer is immutable after construction, keeps no reference to the file it
// came from, and may be used by many goroutines at once. A Stream belongs to one
// goroutine. Encoding takes time proportional to n log n for the longest piece
// and n otherwise, whatever the input.
//
// Character classes come from the standard library's unicode tables (version
// 15.0); letters assigned later are split like symbols.
package tokenizer
