package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/speculate"
	"strobe/internal/termtext"
)

func newCheckCmd() *cobra.Command {
	c := &checker{}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [URL] [MODEL]",
		Short: "Find out whether a deployed server is healthy, as a user would",
		Long: `Check asks a server what its users ask: is the model loaded, does it answer, does drafting pay off, does a second
turn find the first one in the cache, does a client that leaves free its slot, is there a model behind the name "any".
Each drafter is asked alone, too: repetitions of earlier text are guessed without it and would hide one that is broken.

It prints a line per check and exits with 1 if one fails. What a server does not tell, vLLM for instance does not
say how many drafted tokens an answer had, is noted and does not fail; nor does a drafter that Strobe does not use
because it would not pay at the moment.`,
		Example: `  strobe check http://127.0.0.1:8080
  strobe check https://llm.example.org my-model --api-key-file key.txt --json`,
		Args: positional("[URL]", "[MODEL]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				c.model = args[1]
			}
			if err := c.read(args); err != nil {
				return err
			}
			return c.run(cmd, asJSON)
		},
	}
	c.serverFlags.add(cmd)
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print one object of JSON")
	f.DurationVar(&c.timeout, "timeout", 2*time.Minute, "time each check may take, loading the model included")
	return cmd
}

// checker asks a server questions.
type checker struct {
	serverFlags
	model   string
	timeout time.Duration
	first   checkTurn // the answer to the first question
}

// checkResult is how a check ended.
type checkResult struct {
	Name string  `json:"name"`
	OK   bool    `json:"ok"`
	Note string  `json:"note"`
	MS   float64 `json:"ms"`
}

// errUnhealthy is why the command fails when a check did. The lines above it say what is wrong.
var errUnhealthy = errors.New("the server is not healthy")

func (c *checker) run(cmd *cobra.Command, asJSON bool) error {
	checks := []struct {
		name string
		do   func(ctx context.Context) (note string, err error)
	}{
		{"ready", c.ready}, {"model", c.find}, {"answer", c.answer}, {"drafts", c.drafts}, {"cache", c.cache},
		{"cancel", c.cancel}, {"any", c.any},
	}
	var results []checkResult
	healthy := true
	for _, x := range checks {
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		start := time.Now()
		note, err := x.do(ctx)
		cancel()
		if cmd.Context().Err() != nil {
			return cmd.Context().Err()
		}
		r := checkResult{x.name, err == nil, note, float64(time.Since(start).Microseconds()) / 1e3}
		word := "ok  "
		if err != nil {
			r.Note, word, healthy = oneLine(err), "FAIL", false
		}
		results = append(results, r)
		if !asJSON {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %-7s %s\n", word, r.Name, termtext.Printable(r.Note))
		}
		if err != nil && len(results) <= 3 { // nothing else can be asked
			break
		}
	}
	if asJSON {
		out := map[string]any{"url": c.server, "model": c.model, "healthy": healthy, "checks": results}
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(out); err != nil {
			return err
		}
	}
	if !healthy {
		return errUnhealthy
	}
	return nil
}

// request sends a request; body nil makes it a GET. The caller closes the answer.
func (c *checker) request(ctx context.Context, path string, body any) (*http.Response, error) {
	method, data := http.MethodGet, []byte(nil)
	if body != nil {
		method = http.MethodPost
		var err error
		if data, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.do(http.DefaultClient, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 2048))
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", path, resp.Status, strings.TrimSpace(string(text)))
	}
	return resp, nil
}

// get reads an answer's JSON.
func (c *checker) get(ctx context.Context, path string, body, into any) error {
	resp, err := c.request(ctx, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(into); err != nil {
		return fmt.Errorf("%s: the answer is not JSON: %w", path, err)
	}
	return nil
}

// ready waits until the server says that it can answer.
func (c *checker) ready(ctx context.Context) (string, error) {
	start := time.Now()
	for {
		resp, err := c.request(ctx, "/health", nil)
		if err == nil {
			resp.Body.Close()
			return fmt.Sprintf("after %.1f s", time.Since(start).Seconds()), nil
		}
		if !strings.Contains(err.Error(), "503") { // 503 is loading
			return "", err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return "", fmt.Errorf("it is still loading after %v", c.timeout)
		}
	}
}

// find checks that the model is there, or takes the first one.
func (c *checker) find(ctx context.Context) (string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := c.get(ctx, "/v1/models", nil, &list); err != nil {
		return "", err
	}
	if len(list.Data) == 0 {
		return "", errors.New("it has no models")
	}
	for _, m := range list.Data {
		if m.ID == c.model {
			return c.model, nil
		}
	}
	if c.model != "" {
		return "", fmt.Errorf("it has no model %q", c.model)
	}
	c.model = list.Data[0].ID
	return fmt.Sprintf("%s (of %d)", c.model, len(list.Data)), nil
}

// checkTurn is an answer as far as checks look at it.
type checkTurn struct {
	Choices []struct {
		Message struct {
			Content   string `json:"content"`
			Reasoning string `json:"reasoning_content"`
		} `json:"message"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Timings *struct {
		Drafted  int                    `json:"draft_n"`
		Accepted int                    `json:"draft_n_accepted"`
		Speed    float64                `json:"predicted_per_second"`
		Sources  map[string]checkSource `json:"draft_sources"`
	} `json:"timings"`
}

// checkSource is what a source of drafts did.
type checkSource struct {
	Drafts   int `json:"drafts"`
	Bad      int `json:"bad"`
	Right    int `json:"right"`
	Failed   int `json:"failed"`
	Guessed  int `json:"draft_n"`
	Accepted int `json:"draft_n_accepted"`
}

// question makes a drafter's work easy: a text that repeats itself. The mark keeps it out of earlier runs' caches.
func question(mark string) []map[string]string {
	lines := strings.Repeat("one two three four five six seven eight\n", 12)
	return []map[string]string{{"role": "user", "content": "Note " + mark + ". Go on with this text:\n" + lines}}
}

var checkMark = strconv.FormatInt(time.Now().UnixNano(), 36)

func (c *checker) chat(
	ctx context.Context,
	model string,
	messages []map[string]string,
	n int,
	source string,
) (t checkTurn, err error) {
	body := map[string]any{
		"model": model, "messages": messages, "max_tokens": n, "temperature": 0, "ignore_eos": true,
	}
	if source != "" {
		body["strobe"] = map[string]any{"draft": source}
	}
	err = c.get(ctx, "/v1/chat/completions", body, &t)
	if err == nil && len(t.Choices) == 0 {
		err = errors.New("the answer has no choices")
	}
	return t, err
}

// answer asks a question.
func (c *checker) answer(ctx context.Context) (string, error) {
	t, err := c.chat(ctx, c.model, question(checkMark), 64, "")
	if err != nil {
		return "", err
	}
	if t.Usage.Completion == 0 {
		return "", errors.New("the answer is empty")
	}
	c.first = t
	note := fmt.Sprintf("%s to a prompt of %d", count(t.Usage.Completion, "token"), t.Usage.Prompt)
	if t.Timings != nil && t.Timings.Speed > 0 {
		note += fmt.Sprintf(", %.1f tokens/s", t.Timings.Speed)
	}
	return note, nil
}

// enough is how many guesses there must be, and enoughDrafts how many first guesses, before none of them being right
// says anything. The first guess of a drafter that works is right more often than not, and the text is easy.
const enough, enoughDrafts = 16, 5

// drafts looks whether guesses were accepted. A short answer may have none: drafting has to show first that it pays.
// Then it asks each drafter alone: one that guesses nothing useful is hidden by repetitions of earlier text otherwise.
func (c *checker) drafts(ctx context.Context) (string, error) {
	t := c.first.Timings
	if t == nil {
		return "the server does not tell", nil
	}
	if t.Accepted == 0 && t.Drafted < enough {
		again, err := c.chat(ctx, c.model, question(checkMark+"d"), 512, "")
		if err != nil {
			return "", err
		}
		if again.Timings != nil {
			t = again.Timings
		}
	}
	drafters, on := c.drafters(ctx)
	note := ""
	switch {
	case t.Accepted > 0:
		note = fmt.Sprintf("%d of %d drafted tokens accepted", t.Accepted, t.Drafted)
	case t.Drafted >= enough:
		return "", fmt.Errorf("none of %d drafted tokens was accepted; does the drafter belong to this model?", t.Drafted)
	case len(drafters) > 0 && on:
		note = "hardly any: the server has a drafter and found that it does not pay at the moment"
	default:
		return "", errors.New("nothing was drafted; has the model a drafter, is drafting on?")
	}
	if !on || len(t.Sources) == 0 { // another server, which has no such choice
		return note, nil
	}
	for _, name := range drafters {
		own, err := c.drafter(ctx, name)
		if err != nil {
			return "", err
		}
		note += "; " + own
	}
	return note, nil
}

// drafter looks at the guesses of one drafter: in answers of its own, and in all answers since the model was loaded.
// Where drafting seldom pays a few answers have a few drafts.
func (c *checker) drafter(ctx context.Context, name string) (string, error) {
	var x checkSource
	for _, n := range []int{64, 512} {
		t, err := c.chat(ctx, c.model, question(checkMark+name), n, name)
		if err != nil {
			return "", err
		}
		if t.Timings != nil {
			x = t.Timings.Sources[name]
		}
		if x.Right > 0 || x.Bad > 0 || x.Failed > 0 {
			break
		}
		if all := c.sinceLoaded(ctx, name); all.Drafts > x.Drafts {
			x = all
		}
		if x.Right > 0 || x.Drafts >= enoughDrafts {
			break
		}
	}
	switch {
	case x.Failed > 0 || x.Bad > 0 && x.Right == 0:
		return "", fmt.Errorf("%s alone: %d of %s unusable; its file may be damaged "+
			"(the server's log and \"strobe inspect\" say more)", name, x.Bad, count(x.Drafts, "draft"))
	case x.Right > 0:
		return fmt.Sprintf("%s alone: %d of %d, the first guess right in %d of %s", name, x.Accepted, x.Guessed, x.Right,
			count(x.Drafts, "draft")), nil
	case x.Drafts >= enoughDrafts:
		return "", fmt.Errorf("%s alone: not one first guess of %d drafts was right; does the drafter belong to this model?",
			name, x.Drafts)
	}
	return fmt.Sprintf("%s alone: %s, it does not pay at the moment", name, count(x.Drafts, "draft")), nil
}

// sinceLoaded is what a drafter did in all answers of the server.
func (c *checker) sinceLoaded(ctx context.Context, name string) checkSource {
	var list struct {
		Models []struct {
			Name    string
			Sources map[string]checkSource `json:"draft_sources"`
		}
	}
	_ = c.get(ctx, "/api/ps", nil, &list) // a server that does not tell has nothing to add
	for _, m := range list.Models {
		if m.Name == c.model {
			return m.Sources[name]
		}
	}
	return checkSource{}
}

// drafters are the names of the model's drafters, and whether the server uses them.
func (c *checker) drafters(ctx context.Context) (names []string, on bool) {
	var props struct {
		Speculative struct {
			Draft    string
			Drafters []string
		}
	}
	err := c.get(ctx, "/props?model="+url.QueryEscape(c.model), nil, &props)
	return props.Speculative.Drafters, err == nil && props.Speculative.Draft != speculate.Off
}

// cache asks a second question in the same conversation.
func (c *checker) cache(ctx context.Context) (string, error) {
	m := c.first.Choices[0].Message
	t, err := c.chat(
		ctx,
		c.model,
		append(question(checkMark), map[string]string{"role": "assistant", "content": m.Content},
			map[string]string{"role": "user", "content": "Thank you."}),
		4,
		"",
	)
	switch {
	case err != nil:
		return "", err
	case t.Usage.Details == nil:
		return "the server does not tell", nil
	case t.Usage.Details.Cached == 0:
		return "", fmt.Errorf("a second turn of %d tokens found nothing of the first in the cache", t.Usage.Prompt)
	}
	return fmt.Sprintf("%d of %d tokens of the second turn were cached", t.Usage.Details.Cached, t.Usage.Prompt), nil
}

// busy counts the requests the server works on, < 0 if it does not tell.
func (c *checker) busy(ctx context.Context) int {
	resp, err := c.request(ctx, "/metrics", nil)
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	n, found := 0.0, false
	sc := bufio.NewScanner(io.LimitReader(resp.Body, 16<<20))
	for sc.Scan() {
		if strings.HasPrefix(sc.Text(), "vllm:num_requests_running") {
			fields := strings.Fields(sc.Text())
			if v, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil {
				n, found = n+v, true
			}
		}
	}
	if !found {
		return -1
	}
	return int(n)
}

// cancel begins an answer, leaves, and looks whether the slot gets free.
func (c *checker) cancel(ctx context.Context) (string, error) {
	before := c.busy(ctx)
	if before < 0 {
		return "the server does not tell", nil
	}
	inner, leave := context.WithCancel(ctx)
	defer leave()
	resp, err := c.request(inner, "/v1/chat/completions", map[string]any{
		"model": c.model, "messages": question(checkMark + "c"), "max_tokens": 4096, "stream": true, "ignore_eos": true,
	})
	if err != nil {
		return "", err
	}
	_, err = resp.Body.Read(make([]byte, 1))
	leave()
	resp.Body.Close()
	if err != nil {
		return "", fmt.Errorf("the stream ended before it began: %w", err)
	}
	start := time.Now()
	for c.busy(ctx) > before {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return "", errors.New("the slot of a client that left is still busy")
		}
	}
	return fmt.Sprintf("the slot was free after %d ms", time.Since(start).Milliseconds()), nil
}

// any asks for whatever model is loaded.
func (c *checker) any(ctx context.Context) (string, error) {
	if _, err := c.chat(ctx, "any", question(checkMark), 1, ""); err != nil {
		if c.first.Timings == nil { // not a name that other engines know
			return "the server does not know the name", nil
		}
		return "", err
	}
	return "resolves", nil
}
