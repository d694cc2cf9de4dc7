// Package gguf reads and writes GGUF files, the container llama.cpp uses for
// models. It knows nothing about models.
//
// [Open] maps a file, checks every count, length and offset in its header, and
// decodes values only when they are asked for, so opening a file with a large
// vocabulary costs a few milliseconds. A file in several parts
// ("name-00001-of-00003.gguf") is opened through its first part and looks like
// one file. [Create] writes a file, or several parts, under temporary names and
// renames them when everything is there.
//
// A File is safe for concurrent use until Close. Tensor data is the mapping
// itself: read-only, and gone after Close. Names and values that were read are
// copies and stay valid. A Writer belongs to one goroutine.
package gguf
