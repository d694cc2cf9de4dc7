// Package safetensors reads and writes safetensors files, the format in which
// checkpoints are published.
//
// [Open] maps one file, or all shards of a checkpoint folder, and checks the
// header: nothing is copied. A File is safe for concurrent use until Close;
// tensor data is the mapping itself, read-only, and gone after Close.
package safetensors
