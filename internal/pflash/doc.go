// Package pflash shortens prompts before they are prefilled: a small model reads the whole prompt and scores it by
// what the end of it attends to; only the chunks with the best scores are kept (speculative prefill, arXiv
// 2502.02789). What is left out is lost, so it is used only on request, and the result says what was left out.
//
// A Scorer scores tokens, SelectText chooses chunks of a text (Select does so as the reference), a Compressor those of
// conversations, message by message, and a Prefill is all of it with a model file, as servers and commands use it.
package pflash
