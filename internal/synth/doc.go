// Package synth writes GGUF files of random weights with the exact shape of real
// models, for work on speed and memory without downloads.
//
// A file has everything a loader looks for: the keys a converted checkpoint
// would have, all tensors with the types of the chosen mix, and a made-up but
// well-formed tokenizer of the real size with the real special tokens. Weights
// are scaled so that activations stay sane and logits finite; what such a model
// says is noise.
//
// Main entry point: [Write]. Shapes are in shapes.go, the tensors they imply in
// tensors.go, the tokenizer in vocab.go, vision towers in tower.go.
package synth
