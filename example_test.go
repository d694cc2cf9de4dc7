package strobe_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"strobe"
	"strobe/models"
)

// open opens the small model that is part of this repository, with its drafter. For others there is strobe.Open.
func open() *strobe.Model {
	target, drafter, err := models.Open()
	if err != nil {
		panic(err)
	}
	m, err := strobe.OpenFiles(target, drafter, strobe.Options{})
	if err != nil {
		panic(err)
	}
	return m
}

const code = `func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil,`

// A text is continued until the model ends it, a limit is reached or one of the stops comes.
func ExampleModel_Complete() {
	m := open()
	defer m.Close()
	answer, err := m.Complete(context.Background(), code, strobe.Settings{MaxTokens: 20, Stops: []string{"\n"}})
	if err != nil {
		panic(err)
	}
	if err := answer.Wait(nil); err != nil {
		panic(err)
	}
	fmt.Println(answer.Text())
	// Output: err
}

// Pieces come as soon as they are certain, several at once where a draft was right.
func ExampleAnswer_Wait() {
	m := open()
	defer m.Close()
	answer, err := m.Complete(context.Background(), code, strobe.Settings{MaxTokens: 40})
	if err != nil {
		panic(err)
	}
	var shown strings.Builder
	if err := answer.Wait(func(p strobe.Piece) error {
		shown.WriteString(p.Text)
		return nil
	}); err != nil {
		panic(err)
	}
	r := answer.Result()
	fmt.Println("shown all:", shown.String() == answer.Text())
	fmt.Println("ended by:", r.Reason, "after", r.Generated, "tokens")
	fmt.Println("passes fewer than tokens:", r.Stats.Rounds < r.Generated)
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
			err = answer.Wait(nil)
		}
		if err != nil {
			panic(err)
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
			panic(err)
		}
		if err := answer.Wait(nil); err != nil {
			panic(err)
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
