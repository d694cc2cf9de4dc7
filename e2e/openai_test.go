package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func openaiClient() openai.Client {
	return openai.NewClient(option.WithBaseURL(server+"/v1/"), option.WithAPIKey(key), option.WithMaxRetries(0))
}

func hello(max int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."),
			openai.UserMessage("Hello")},
		MaxCompletionTokens: openai.Int(max), Temperature: openai.Float(0), Seed: openai.Int(1),
	}
}

func TestOpenAIChat(t *testing.T) {
	c := openaiClient()
	p := hello(24)
	whole, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.Choices) != 1 || whole.Choices[0].Message.Content == "" || whole.Model != "tiny" ||
		whole.Usage.CompletionTokens == 0 {
		t.Errorf("answer %s", whole.RawJSON())
	}
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	s := c.Chat.Completions.NewStreaming(t.Context(), p)
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			t.Errorf("chunk %s does not fit", s.Current().RawJSON())
		}
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	if acc.Choices[0].Message.Content != whole.Choices[0].Message.Content ||
		acc.Choices[0].FinishReason != whole.Choices[0].FinishReason ||
		acc.Usage.CompletionTokens != whole.Usage.CompletionTokens {
		t.Errorf("streamed %+v, whole %s", acc.Choices, whole.RawJSON())
	}
}

func TestOpenAILogProbs(t *testing.T) {
	c := openaiClient()
	p := hello(10)
	p.Logprobs, p.TopLogprobs, p.N = openai.Bool(true), openai.Int(2), openai.Int(2)
	r, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Choices) != 2 {
		t.Fatalf("%d choices", len(r.Choices))
	}
	for _, ch := range r.Choices {
		if n := len(ch.Logprobs.Content); n == 0 || len(ch.Logprobs.Content[0].TopLogprobs) != 2 ||
			ch.Logprobs.Content[0].Logprob > 0 {
			t.Errorf("log probabilities %s", ch.Logprobs.RawJSON())
		}
	}
}

var cityTool = openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
	Name: "get_weather", Description: openai.String("The weather of a city"),
	Parameters: shared.FunctionParameters{
		"type": "object",
		"properties": map[string]any{"city": map[string]any{"enum": []string{"Bonn", "Köln"}},
			"days": map[string]any{"type": "integer", "minimum": 1, "maximum": 9}},
		"required": []string{"city", "days"},
	},
})

func checkArguments(t *testing.T, args string) {
	t.Helper()
	var v struct {
		City string
		Days int
	}
	if err := json.Unmarshal([]byte(args), &v); err != nil || !slices.Contains([]string{"Bonn", "Köln"}, v.City) ||
		v.Days < 1 || v.Days > 9 {
		t.Errorf("arguments %s: %v", args, err)
	}
}

// TestOpenAITools: a call, its result, and the answer to it.
func TestOpenAITools(t *testing.T) {
	c := openaiClient()
	p := hello(200)
	p.Tools = []openai.ChatCompletionToolUnionParam{cityTool}
	p.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
	p.ParallelToolCalls = openai.Bool(false)
	r, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	m := r.Choices[0].Message
	if len(m.ToolCalls) != 1 || m.ToolCalls[0].Function.Name != "get_weather" ||
		r.Choices[0].FinishReason != "tool_calls" {
		t.Fatalf("answer %s", r.RawJSON())
	}
	checkArguments(t, m.ToolCalls[0].Function.Arguments)

	s := c.Chat.Completions.NewStreaming(t.Context(), p)
	var acc openai.ChatCompletionAccumulator
	finished := ""
	for s.Next() {
		acc.AddChunk(s.Current())
		if tool, ok := acc.JustFinishedToolCall(); ok {
			finished = tool.Arguments
		}
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	if finished != m.ToolCalls[0].Function.Arguments {
		t.Errorf("streamed %q, whole %q", finished, m.ToolCalls[0].Function.Arguments)
	}

	p.Messages = append(p.Messages, m.ToParam(), openai.ToolMessage("Rain.", m.ToolCalls[0].ID))
	p.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("none")}
	p.MaxCompletionTokens = openai.Int(10)
	if r, err = c.Chat.Completions.New(t.Context(), p); err != nil || len(r.Choices[0].Message.ToolCalls) != 0 {
		t.Errorf("after the result: %v, %v", r, err)
	}
}

var personSchema = map[string]any{
	"type": "object", "additionalProperties": false, "required": []string{"name", "age"},
	"properties": map[string]any{"name": map[string]any{"type": "string", "maxLength": 10},
		"age": map[string]any{"type": "integer", "minimum": 0, "maximum": 99}},
}

func checkPerson(t *testing.T, s string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	d.DisallowUnknownFields()
	var v struct {
		Name *string
		Age  *int
	}
	if err := d.Decode(&v); err != nil || v.Name == nil || v.Age == nil || *v.Age > 99 {
		t.Errorf("%s: %v", s, err)
	}
}

func TestOpenAISchema(t *testing.T) {
	c := openaiClient()
	p := hello(200)
	schema := shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "person", Schema: personSchema,
			Strict: openai.Bool(true)},
	}
	p.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &schema}
	r, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	checkPerson(t, r.Choices[0].Message.Content)
}

// TestOpenAICancel: leaving in the middle of a stream frees the slot.
func TestOpenAICancel(t *testing.T) {
	c := openaiClient()
	ctx, cancel := context.WithCancel(t.Context())
	p := hello(4000)
	p.SetExtraFields(map[string]any{"ignore_eos": true})
	s := c.Chat.Completions.NewStreaming(ctx, p)
	for range 3 {
		if !s.Next() {
			t.Fatal(s.Err())
		}
	}
	cancel()
	s.Close()
	slots(t)
}

func TestOpenAIErrors(t *testing.T) {
	c := openaiClient()
	check := func(err error, status int, kind, param string) {
		t.Helper()
		var e *openai.Error
		if !errors.As(err, &e) {
			t.Fatalf("error %v", err)
		}
		if e.StatusCode != status || e.Type != kind || e.Param != param || e.Message == "" {
			t.Errorf("status %d, type %q, parameter %q, message %q", e.StatusCode, e.Type, e.Param, e.Message)
		}
	}
	p := hello(5)
	p.Temperature = openai.Float(-3)
	_, err := c.Chat.Completions.New(t.Context(), p)
	check(err, http.StatusBadRequest, "invalid_request_error", "temperature")
	s := c.Chat.Completions.NewStreaming(t.Context(), p)
	if s.Next() {
		t.Error("a wrong request streams")
	}
	check(s.Err(), http.StatusBadRequest, "invalid_request_error", "temperature")

	p = hello(5)
	p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("long ", 9000))}
	_, err = c.Chat.Completions.New(t.Context(), p)
	check(err, http.StatusBadRequest, "exceed_context_size_error", "")

	bad := openai.NewClient(option.WithBaseURL(server+"/v1/"), option.WithAPIKey("wrong"), option.WithMaxRetries(0))
	_, err = bad.Models.List(t.Context())
	check(err, http.StatusUnauthorized, "authentication_error", "")
	_, err = c.Models.Get(t.Context(), "nope")
	check(err, http.StatusNotFound, "invalid_request_error", "model")
}

func TestOpenAIModelsAndEmbeddings(t *testing.T) {
	c := openaiClient()
	list, err := c.Models.List(t.Context())
	if err != nil || len(list.Data) != 1 || list.Data[0].ID != "tiny" {
		t.Fatalf("models %v, %v", list, err)
	}
	e, err := c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: "tiny",
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}}})
	if err != nil || len(e.Data) != 2 || len(e.Data[0].Embedding) != 64 {
		t.Errorf("embeddings %v, %v", e, err)
	}
	r, err := c.Completions.New(t.Context(), openai.CompletionNewParams{Model: "tiny",
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("func")}, MaxTokens: openai.Int(8),
		Temperature: openai.Float(0)})
	if err != nil || r.Choices[0].Text == "" {
		t.Errorf("completion %v, %v", r, err)
	}
}

func TestOpenAIResponses(t *testing.T) {
	c := openaiClient()
	p := responses.ResponseNewParams{
		Model: "tiny", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Hello")},
		Instructions: openai.String("Be brief."), MaxOutputTokens: openai.Int(20), Temperature: openai.Float(0),
	}
	whole, err := c.Responses.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if whole.OutputText() == "" || whole.Usage.OutputTokens == 0 {
		t.Errorf("response %s", whole.RawJSON())
	}
	s := c.Responses.NewStreaming(t.Context(), p)
	text, last := "", ""
	for s.Next() {
		switch e := s.Current().AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			text += e.Delta
		case responses.ResponseCompletedEvent:
			last = e.Response.OutputText()
		case responses.ResponseIncompleteEvent:
			last = e.Response.OutputText()
		}
	}
	if s.Err() != nil || text != whole.OutputText() || last != text {
		t.Errorf("streamed %q, at the end %q, whole %q, %v", text, last, whole.OutputText(), s.Err())
	}

	p.MaxOutputTokens = openai.Int(200)
	p.ParallelToolCalls = openai.Bool(false)
	p.Tools = []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{Name: "get_weather",
		Parameters: cityTool.OfFunction.Function.Parameters, Strict: openai.Bool(true)}}}
	required := openai.Opt(responses.ToolChoiceOptionsRequired)
	p.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: required}
	r, err := c.Responses.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, it := range r.Output {
		if f, ok := it.AsAny().(responses.ResponseFunctionToolCall); ok {
			found = true
			checkArguments(t, f.Arguments)
		}
	}
	if !found {
		t.Errorf("no call in %s", r.RawJSON())
	}
}
