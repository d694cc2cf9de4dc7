package strobe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"strobe"
	"strobe/models"
)

// open opens the small model that is part of this repository, with its drafter. It completes Go code and cannot chat.
func open() *strobe.Model {
	target, drafter, err := models.Files()
	if err != nil {
		log.Fatal(err)
	}
	m, err := strobe.OpenBytes(context.Background(), target, drafter, strobe.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return m
}

const code = `func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil,`

// A model is opened by its file or its name; what is not on this machine is downloaded.
func ExampleOpen() {
	m, err := strobe.Open(context.Background(), "qwen3.5-4b", strobe.Options{
		Progress: func(p strobe.Progress) { fmt.Printf("\r%s %d%%", p.Stage, 100*p.Done/max(p.Total, 1)) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
}

// A text is continued until the model ends it, a limit is reached or one of the stops comes.
func ExampleModel_Complete() {
	m := open()
	defer m.Close()
	answer, err := m.Complete(context.Background(), code, strobe.Settings{MaxTokens: 20, Stops: []string{"\n"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := answer.Wait(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Text())
	// Output: err
}

// Pieces come as soon as they are certain, several at once where a draft was right.
func ExampleAnswer_Pieces() {
	m := open()
	defer m.Close()
	answer, err := m.Complete(context.Background(), code, strobe.Settings{MaxTokens: 40})
	if err != nil {
		log.Fatal(err)
	}
	var shown strings.Builder
	for piece, err := range answer.Pieces() {
		if err != nil {
			log.Fatal(err)
		}
		shown.WriteString(piece.Text)
	}
	r := answer.Result()
	fmt.Println("shown all:", shown.String() == answer.Text())
	fmt.Println("ended by:", r.Reason, "after", r.Tokens, "tokens")
	fmt.Println("passes fewer than tokens:", r.Passes < r.Tokens)
	// Output:
	// shown all: true
	// ended by: length after 40 tokens
	// passes fewer than tokens: true
}

// Drafting never changes what is said.
func ExampleSettings_drafting() {
	m := open()
	defer m.Close()
	say := func(set strobe.Settings) string {
		answer, err := m.Complete(context.Background(), code, set)
		if err == nil {
			err = answer.Wait()
		}
		if err != nil {
			log.Fatal(err)
		}
		return answer.Text()
	}
	set := strobe.Settings{MaxTokens: 60, Sampling: strobe.Sampling{Temp: 0.8, Seed: 7}}
	drafted := say(set)
	set.Drafting.Draft = strobe.DraftOff
	fmt.Println("the same without drafts:", say(set) == drafted)
	// Output: the same without drafts: true
}

// A conversation is a list of messages; the answer becomes the next one. A context limits how long it may take.
func ExampleModel_Chat() {
	m := open()
	defer m.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	messages := []strobe.Message{{Role: "user", Content: "Say hello."}}
	for _, next := range []string{"And again.", ""} {
		answer, err := m.Chat(ctx, messages, strobe.Settings{MaxTokens: 8})
		if err != nil {
			log.Fatal(err)
		}
		if err := answer.Wait(); err != nil {
			log.Fatal(err)
		}
		messages = append(messages, answer.Message())
		if next != "" {
			messages = append(messages, strobe.Message{Role: "user", Content: next})
		}
	}
	for _, msg := range messages {
		fmt.Println(msg.Role)
	}
	// Output:
	// user
	// assistant
	// user
	// assistant
}

// A schema makes every answer JSON that a program can read.
func ExampleJSONSchema() {
	m := open()
	defer m.Close()
	format := strobe.JSONSchema([]byte(`{"type": "object", "properties": {"language": {"enum": ["Go", "C"]}},
		"required": ["language"], "additionalProperties": false}`))
	answer, err := m.Complete(context.Background(), code, strobe.Settings{Format: format})
	if err != nil {
		log.Fatal(err)
	}
	if err := answer.Wait(); err != nil {
		log.Fatal(err)
	}
	var said struct{ Language string }
	if err := json.Unmarshal([]byte(answer.Text()), &said); err != nil {
		log.Fatal(err)
	}
	fmt.Println(said.Language == "Go" || said.Language == "C")
	// Output: true
}

// A grammar in llama.cpp's notation describes any other text.
func ExampleGrammar() {
	m := open()
	defer m.Close()
	set := strobe.Settings{Format: strobe.Grammar(`root ::= "return " ("nil" | "err")`)}
	answer, err := m.Complete(context.Background(), "if err != nil {\n\t", set)
	if err != nil {
		log.Fatal(err)
	}
	if err := answer.Wait(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Text())
	// Output: return err
}

// Texts that mean similar things have vectors that point in similar directions.
func ExampleModel_Embed() {
	m := open()
	defer m.Close()
	v, err := m.Embed(context.Background(), "for i := range n {", "for j := range m {", "Dear Sir or Madam,")
	if err != nil {
		log.Fatal(err)
	}
	alike := func(a, b []float32) (sum float32) {
		for i := range a {
			sum += a[i] * b[i]
		}
		return sum
	}
	fmt.Println("loops are alike:", alike(v[0], v[1]) > alike(v[0], v[2]))
	// Output: loops are alike: true
}

// Programs count before they ask, and cut what does not fit.
func ExampleModel_CountTokens() {
	m := open()
	defer m.Close()
	n, err := m.CountTokens(context.Background(), []strobe.Message{{Role: "user", Content: "Hello"}}, strobe.Settings{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("fits:", n < m.Info().Context)
	// Output: fits: true
}

// Converse calls the functions that a model asks for and gives it their results, until it has an answer.
func ExampleModel_Converse() {
	m, err := strobe.Open(context.Background(), "qwen3.5-4b", strobe.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	weather := strobe.Tool{
		Name:        "weather",
		Description: "the weather in a town",
		Parameters:  json.RawMessage(`{"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}`),
		Call: func(ctx context.Context, arguments json.RawMessage) (string, error) {
			var in struct{ Town string }
			if err := json.Unmarshal(arguments, &in); err != nil {
				return "", err // the model reads it and may try again
			}
			return "sunny in " + in.Town, nil
		},
	}
	question := []strobe.Message{{Role: "user", Content: "Do I need an umbrella in Rome?"}}
	said, err := m.Converse(context.Background(), question, strobe.Settings{Tools: []strobe.Tool{weather}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(said[len(said)-1].Content)
}

// Errors have types, so that a program can do something about them.
func ExampleContextError() {
	m := open()
	defer m.Close()
	_, err := m.Complete(context.Background(), strings.Repeat("a long text ", 100000), strobe.Settings{})
	var long *strobe.ContextError
	if errors.As(err, &long) {
		fmt.Println("the context has", long.Context, "tokens")
	}
	// Output: the context has 4096 tokens
}
