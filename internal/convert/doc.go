// Package convert turns Hugging Face checkpoints into GGUF files and GGUF files
// into smaller ones.
//
// [HF] reads a folder with config.json, tokenizer files and safetensors weights
// and writes the file llama.cpp's own converter would write: the same keys in
// the same order, the same tensors with the same bytes, but for the scale of
// embeddings that drafters for Gemma need and windows that no layer has; of a
// multimodal checkpoint it writes the text model or the vision tower. [Compare]
// compares a file with its checkpoint. [Quantize] does to a GGUF
// file what llama.cpp's quantiser does. Both stream: weights are memory-mapped,
// converted a few megabytes at a time on all cores, and written under a
// temporary name that is renamed when everything is complete. Nothing is left
// behind after an error or a cancelled context.
//
// Reading order for newcomers: arch.go (which model is which), keys.go (config
// to metadata), names.go and tensors.go (weights), vocab.go (tokenizer),
// metadata.go (names and authorship), mmproj.go (vision towers), stream.go (the
// pipeline).
package convert
