package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"strobe/internal/bench/suite"
	"strobe/internal/chat"
	"strobe/internal/platform"
)

// Prompt is one task of a prompt file. One of Tokens, Messages and Text is set.
type Prompt struct {
	ID       string
	Category string // what kind of task it is, "" if the file does not say
	Text     string // to be continued (Raw) or answered as a user's message
	Raw      bool
	Messages []chat.Message
	Tokens   []int32 // ready-made ids
	Max      int     // most tokens to generate; 0: no opinion
}

// files of the named suites, by the names they are published under. The first that exists is taken.
var files = map[string][]string{
	"humaneval": {"bench_he.jsonl", "humaneval.jsonl", "HumanEval.jsonl"},
	"gsm8k":     {"bench_gsm.jsonl", "gsm8k.jsonl", "test.jsonl"},
	"mt-bench":  {"mt_bench.jsonl", "question.jsonl"},
	"math":      {"bench_math.jsonl", "math500.jsonl", "math-500.jsonl"},
	"agent":     {"bench_agent.jsonl"},
}

// SuiteNames lists the suites: ours, which are part of the program, and the public ones, whose files
// have to be there.
func SuiteNames() []string {
	return []string{"code", "general", "humaneval", "gsm8k", "mt-bench", "math", "agent"}
}

// Suite returns the prompts of a named suite. Public suites are read from a file in dir.
func Suite(name, dir string) ([]Prompt, error) {
	switch name {
	case "code":
		var ps []Prompt
		for _, c := range suite.Code() {
			ps = append(ps, Prompt{ID: c.Name, Text: c.Text, Raw: true})
		}
		return ps, nil
	case "general":
		return ReadPrompts(bytes.NewReader(suite.General), "suite general")
	}
	names := files[name]
	if names == nil {
		return nil, fmt.Errorf("suite %q: want one of %s", name, strings.Join(SuiteNames(), ", "))
	}
	if dir == "" {
		return nil, fmt.Errorf("suite %s is not part of the program: put %s into a folder and name it with --prompts-dir "+
			"or STROBE_PROMPTS", name, names[0])
	}
	for _, n := range names {
		path := filepath.Join(dir, n)
		if _, err := os.Stat(path); err == nil {
			return ReadPromptFile(path)
		}
	}
	return nil, fmt.Errorf("suite %s: %s has no file %s", name, dir, strings.Join(names, " or "))
}

// ReadPromptFile reads a file of prompts, see ReadPrompts.
func ReadPromptFile(path string) ([]Prompt, error) {
	f, err := platform.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadPrompts(f, path)
}

// ReadPrompts reads prompts, one JSON object per line. An object has one of
//
//	tokens     a list of token ids, run as they are
//	messages   a conversation in OpenAI's shape, to be answered
//	prompt     text (HumanEval, and files of one's own); "raw": true continues it instead of answering
//	turns      questions of a conversation (MT-Bench); the first is asked
//	question   text (GSM8K)
//	problem    text (MATH-500)
//
// and may have an id (also task_id, question_id, unique_id), a category (also subject) and max_tokens. Other fields are
// ignored. name stands in front of error messages.
func ReadPrompts(r io.Reader, name string) ([]Prompt, error) {
	var ps []Prompt
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 64<<20)
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		p, err := parsePrompt(line)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", name, n, err)
		}
		if p.ID == "" {
			p.ID = fmt.Sprintf("line-%d", n)
		}
		ps = append(ps, p)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(ps) == 0 {
		return nil, fmt.Errorf("%s: no prompts", name)
	}
	return ps, nil
}

func parsePrompt(line []byte) (Prompt, error) {
	var o struct {
		ID         any            `json:"id"`
		TaskID     any            `json:"task_id"`
		QuestionID any            `json:"question_id"`
		UniqueID   any            `json:"unique_id"`
		Category   string         `json:"category"`
		Subject    string         `json:"subject"`
		Tokens     []int32        `json:"tokens"`
		Messages   []chat.Message `json:"messages"`
		Prompt     string         `json:"prompt"`
		Raw        bool           `json:"raw"`
		Turns      []string       `json:"turns"`
		Question   string         `json:"question"`
		Problem    string         `json:"problem"`
		Max        int            `json:"max_tokens"`
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return Prompt{}, err
	}
	p := Prompt{Tokens: o.Tokens, Messages: o.Messages, Raw: o.Raw, Max: max(0, o.Max),
		Category: cmp.Or(o.Category, o.Subject)}
	for _, id := range []any{o.ID, o.TaskID, o.QuestionID, o.UniqueID} {
		if id != nil && p.ID == "" {
			p.ID = fmt.Sprint(id)
		}
	}
	p.Text = o.Prompt
	if p.Text == "" && len(o.Turns) > 0 {
		p.Text = o.Turns[0]
	}
	p.Text = cmp.Or(p.Text, o.Question, o.Problem)
	if p.Text == "" && len(p.Messages) == 0 && len(p.Tokens) == 0 {
		return p, fmt.Errorf("no prompt: want one of tokens, messages, prompt, turns, question, problem")
	}
	return p, nil
}

// Pick returns n of the prompts, spread evenly over the list; 0 returns all.
func Pick(ps []Prompt, n int) []Prompt {
	if n <= 0 || n >= len(ps) {
		return ps
	}
	out := make([]Prompt, n)
	for i := range out {
		out[i] = ps[i*len(ps)/n]
	}
	return slices.Clip(out)
}
