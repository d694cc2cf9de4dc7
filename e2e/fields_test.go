package e2e

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

// TestFieldLists compares the lists of fields that the server's tests go through with the types of the clients. A newer
// client whose requests have more fields fails here.
func TestFieldLists(t *testing.T) {
	types := map[string]any{
		"openai.ChatCompletionNewParams":           openai.ChatCompletionNewParams{},
		"openai.ChatCompletionStreamOptionsParam":  openai.ChatCompletionStreamOptionsParam{},
		"openai.CompletionNewParams":               openai.CompletionNewParams{},
		"openai.EmbeddingNewParams":                openai.EmbeddingNewParams{},
		"responses.ResponseNewParams":              responses.ResponseNewParams{},
		"responses.ResponseTextConfigParam":        responses.ResponseTextConfigParam{},
		"shared.ReasoningParam":                    shared.ReasoningParam{},
		"anthropic.MessageNewParams":               anthropic.MessageNewParams{},
		"anthropic.BetaMessageNewParams":           anthropic.BetaMessageNewParams{},
		"anthropic.BetaOutputConfigParam":          anthropic.BetaOutputConfigParam{},
		"anthropic.BetaThinkingConfigEnabledParam": anthropic.BetaThinkingConfigEnabledParam{},
		"anthropic.BetaToolChoiceToolParam":        anthropic.BetaToolChoiceToolParam{},
	}
	text, err := os.ReadFile(filepath.Join("..", "internal", "server", "testdata", "fields.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		typ, ok := types[words[1]]
		if !ok {
			continue
		}
		delete(types, words[1])
		if got := fieldNames(reflect.TypeOf(typ)); !slices.Equal(got, words[2:]) {
			t.Errorf("%s has the fields %q; the list has %q", words[1], got, words[2:])
		}
	}
	for name := range types {
		t.Errorf("%s is not in the list", name)
	}
}

// fieldNames are the names in JSON of a struct's fields, sorted.
func fieldNames(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
