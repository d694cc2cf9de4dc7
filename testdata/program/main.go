// Command program uses everything of the library from another module. Its arguments are the files of a model that
// chats and of its drafter; TestOtherModule builds and runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"strobe"
)

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	m, err := strobe.Open(ctx, os.Args[1], strobe.Options{Drafter: os.Args[2], Device: "cpu", Threads: 1, Parallel: 2,
		Context: 512, CacheBytes: 1 << 20, KV: "f16", Progress: func(strobe.Progress) {}})
	check(err)
	defer m.Close()
	info := m.Info()
	fmt.Println("info:", info.Context == 512, info.Chats, info.Tools, !info.Images, info.Vocab > 0)

	target, err := os.ReadFile(os.Args[1])
	check(err)
	drafter, err := os.ReadFile(os.Args[2])
	check(err)
	inMemory, err := strobe.OpenBytes(ctx, target, drafter, strobe.Options{Device: "cpu", Threads: 1})
	check(err)
	check(inMemory.Close())

	conversation := []strobe.Message{{Role: "user", Parts: []strobe.Part{{Text: "hello"}}}}
	set := strobe.Settings{MaxTokens: 12, Sampling: strobe.Sampling{Temp: 0.7, TopK: 40, TopP: 0.9, Seed: 3}}
	answer, err := m.Chat(ctx, conversation, set)
	check(err)
	tokens := ""
	for piece, err := range answer.Pieces() {
		check(err)
		tokens += piece.Text
	}
	result := answer.Result()
	fmt.Println("chat:", tokens != "", result.Tokens == 12, result.Reason == strobe.ReasonLength)
	conversation = append(conversation, answer.Message())

	set.Drafting.Draft = strobe.DraftOff
	plain, err := m.Chat(ctx, conversation[:1], set)
	check(err)
	check(plain.Wait())
	fmt.Println("the same without drafts:", plain.Text() == answer.Text())

	answer, err = m.Complete(ctx, "one", strobe.Settings{MaxTokens: 3, Stops: []string{"never"}})
	check(err)
	for err == nil {
		_, err = answer.Next()
	}
	fmt.Println("complete:", errors.Is(err, io.EOF), answer.Text() != "")

	format := strobe.JSONSchema([]byte(`{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}`))
	answer, err = m.Complete(ctx, "JSON:", strobe.Settings{Format: format})
	check(err)
	check(answer.Wait())
	fmt.Println("schema:", json.Valid([]byte(answer.Text())))
	answer, err = m.Complete(ctx, "", strobe.Settings{Format: strobe.Grammar(`root ::= "a" | "b"`)})
	if errors.Is(err, strobe.ErrEmptyPrompt) {
		answer, err = m.Complete(ctx, "x", strobe.Settings{Format: strobe.Grammar(`root ::= "a" | "b"`)})
	}
	check(err)
	check(answer.Wait())
	fmt.Println("grammar:", answer.Text() == "a" || answer.Text() == "b")

	vectors, err := m.Embed(ctx, "one", "two")
	check(err)
	fmt.Println("embed:", len(vectors) == 2, len(vectors[0]) == info.Hidden)
	count, err := m.CountTokens(ctx, conversation, strobe.Settings{})
	check(err)
	ids, err := m.Tokenize("hello")
	check(err)
	text, err := m.Detokenize(ids)
	check(err)
	fmt.Println("count:", count > len(ids), text == "hello")

	tool := strobe.Tool{Name: "now", Description: "the time", Call: func(context.Context, json.RawMessage) (string, error) {
		return "noon", nil
	}}
	set.Tools = []strobe.Tool{tool}
	_, err = m.Converse(ctx, conversation[:1], set, func(strobe.Piece) error { return nil })
	fmt.Println("tools:", err == nil)

	_, err = m.Complete(ctx, fmt.Sprint(make([]int, 4000)), strobe.Settings{})
	var long *strobe.ContextError
	fmt.Println("errors:", errors.As(err, &long) && long.Context == 512)
	_, err = strobe.Open(ctx, "no such name", strobe.Options{Offline: true})
	fmt.Println("names:", errors.Is(err, strobe.ErrUnknownName))
	check(m.Close())
	_, err = m.Chat(ctx, conversation, strobe.Settings{})
	fmt.Println("closed:", errors.Is(err, strobe.ErrClosed))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
