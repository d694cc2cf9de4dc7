package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

func anthropicClient() anthropic.Client {
	return anthropic.NewClient(option.WithBaseURL(server), option.WithAPIKey(key), option.WithMaxRetries(0))
}

func greeting(max int64) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model: "tiny", MaxTokens: max, Temperature: anthropic.Float(0),
		System:   []anthropic.TextBlockParam{{Text: "Be brief."}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))},
	}
}

// accumulate reads a stream to its end.
func accumulate(t *testing.T, c anthropic.Client, p anthropic.MessageNewParams) anthropic.Message {
	t.Helper()
	s := c.Messages.NewStreaming(t.Context(), p)
	var m anthropic.Message
	for s.Next() {
		if err := m.Accumulate(s.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	return m
}

func TestAnthropicMessages(t *testing.T) {
	c := anthropicClient()
	p := greeting(24)
	whole, err := c.Messages.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.Content) != 1 || whole.Content[0].Text == "" || whole.StopReason == "" || whole.Usage.OutputTokens == 0 {
		t.Errorf("message %s", whole.RawJSON())
	}
	m := accumulate(t, c, p)
	if len(m.Content) != 1 || m.Content[0].Text != whole.Content[0].Text || m.StopReason != whole.StopReason {
		t.Errorf("streamed %+v, whole %s", m.Content, whole.RawJSON())
	}
	n, err := c.Messages.CountTokens(t.Context(),
		anthropic.MessageCountTokensParams{Model: "tiny", Messages: p.Messages,
			System: anthropic.MessageCountTokensParamsSystemUnion{OfTextBlockArray: p.System}})
	if err != nil || n.InputTokens != whole.Usage.InputTokens+whole.Usage.CacheReadInputTokens {
		t.Errorf("counted %v, %v; usage %+v", n, err, whole.Usage)
	}
}

func TestAnthropicTools(t *testing.T) {
	c := anthropicClient()
	p := greeting(300)
	p.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{
		Properties: cityTool.OfFunction.Function.Parameters["properties"], Required: []string{"city", "days"},
	}, "get_weather")}
	one := anthropic.ToolChoiceAnyParam{DisableParallelToolUse: anthropic.Bool(true)}
	p.ToolChoice = anthropic.ToolChoiceUnionParam{OfAny: &one}
	whole, err := c.Messages.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	call := whole.Content[len(whole.Content)-1]
	if whole.StopReason != anthropic.StopReasonToolUse || call.Name != "get_weather" {
		t.Fatalf("message %s", whole.RawJSON())
	}
	checkArguments(t, string(call.Input))
	m := accumulate(t, c, p)
	var got, want bytes.Buffer
	if json.Compact(&got, m.Content[len(m.Content)-1].Input) != nil || json.Compact(&want, call.Input) != nil ||
		got.String() != want.String() {
		t.Errorf("streamed %s, whole %s", got.String(), want.String())
	}
	p.Messages = append(p.Messages, whole.ToParam(),
		anthropic.NewUserMessage(anthropic.NewToolResultBlock(call.ID, "Rain.", false)))
	p.ToolChoice = anthropic.ToolChoiceUnionParam{OfNone: &anthropic.ToolChoiceNoneParam{}}
	p.MaxTokens = 10
	if _, err := c.Messages.New(t.Context(), p); err != nil {
		t.Errorf("after the result: %v", err)
	}
}

func TestAnthropicThinking(t *testing.T) {
	c := anthropicClient()
	p := greeting(2000)
	p.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024)
	m := accumulate(t, c, p)
	if len(m.Content) == 0 || m.Content[0].Type != "thinking" || m.Content[0].Thinking == "" {
		t.Errorf("message %+v", m.Content)
	}
}

func TestAnthropicSchema(t *testing.T) {
	c := anthropicClient()
	p := greeting(300)
	p.OutputConfig = anthropic.OutputConfigParam{Format: anthropic.JSONOutputFormatParam{Schema: personSchema}}
	m, err := c.Messages.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	checkPerson(t, m.Content[0].Text)
}

func TestAnthropicCancel(t *testing.T) {
	c := anthropicClient()
	ctx, cancel := context.WithCancel(t.Context())
	s := c.Messages.NewStreaming(ctx, greeting(4000))
	for range 2 {
		if !s.Next() {
			t.Fatal(s.Err())
		}
	}
	cancel()
	s.Close()
	slots(t)
}

func TestAnthropicErrors(t *testing.T) {
	c := anthropicClient()
	check := func(err error, status int, kind string) {
		t.Helper()
		var e *anthropic.Error
		if !errors.As(err, &e) || e.StatusCode != status || string(e.Type()) != kind {
			t.Errorf("error %v, want %d %s", err, status, kind)
		}
	}
	p := greeting(5)
	p.Temperature = anthropic.Float(-1)
	_, err := c.Messages.New(t.Context(), p)
	check(err, http.StatusBadRequest, "invalid_request_error")
	bad := anthropic.NewClient(option.WithBaseURL(server), option.WithAPIKey("wrong"), option.WithMaxRetries(0))
	_, err = bad.Messages.New(t.Context(), greeting(5))
	check(err, http.StatusUnauthorized, "authentication_error")
}
