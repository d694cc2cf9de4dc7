package engine

import "context"

// Embed returns the final hidden state of the last token: the model's summary of the text, Hidden
// values, not normalised. It waits its turn like a generation.
func (e *Engine) Embed(ctx context.Context, tokens []int32) ([]float32, error) {
	return nil, ErrUnsupported
}
