//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/testkit"
	"strobe/internal/upstream"
)

// replicas starts servers of one model, each a process that calls the model by a name of its own.
func replicas(t *testing.T, n int, args ...string) (cmds []*exec.Cmd, urls []string) {
	t.Helper()
	for i := range n {
		cmd, url := startProcess(
			t,
			append([]string{"-m", testkit.Golden(t, "qwen3/model.gguf"), "--alias", fmt.Sprint("replica", i),
				"--threads", "1"}, args...)...)
		cmds, urls = append(cmds, cmd), append(urls, url)
	}
	for _, u := range urls {
		ready(t, u)
	}
	return cmds, urls
}

// streamed is how a streaming request ended.
type streamed struct {
	by      string // the replica
	err     string // what the stream or the answer says
	whole   bool   // it ended as it should
	pieces  int
	status  int
	prompt  int
	cached  int
	content string

	completion int
}

// stream sends a chat request and reads its answer.
func stream(ctx context.Context, url string, q map[string]any) (streamed, error) {
	return streamTelling(ctx, url, q, make(chan struct{}))
}

// streamTelling also closes begun when the answer has.
func streamTelling(ctx context.Context, url string, q map[string]any, begun chan struct{}) (streamed, error) {
	var s streamed
	body, err := json.Marshal(q)
	if err != nil {
		return s, err
	}
	req, err := http.NewRequestWithContext(
		ctx,
		http.MethodPost,
		url+"/v1/chat/completions",
		strings.NewReader(string(body)),
	)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	s.status = resp.StatusCode
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		if data == "[DONE]" {
			s.whole = true
		}
		if !ok {
			data = sc.Text()
		}
		var c struct {
			Model   string
			Choices []struct{ Delta struct{ Content string } }
			Error   *struct{ Message string }
			Usage   struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
				Details    struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if json.Unmarshal([]byte(data), &c) != nil {
			continue
		}
		if c.Error != nil {
			s.err = c.Error.Message
			continue
		}
		s.by = c.Model
		if s.pieces++; s.pieces == 2 { // the first has the role only
			close(begun)
		}
		if c.Usage.Prompt > 0 {
			s.prompt, s.cached, s.completion = c.Usage.Prompt, c.Usage.Details.Cached, c.Usage.Completion
		}
		for _, ch := range c.Choices {
			s.content += ch.Delta.Content
		}
	}
	return s, sc.Err()
}

// TestReplicaDies: of 200 streams through a front server, those that had begun on a replica that is killed end
// with an error that says so. All others are answered.
func TestReplicaDies(t *testing.T) {
	cmds, urls := replicas(t, 3, "--parallel", "4")
	var args []string
	for _, u := range urls {
		args = append(args, "--upstream", "far="+u)
	}
	front, _ := serve(t, args...)
	ready(t, front)
	const all, together = 200, 24
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // for a request that hangs
	defer cancel()
	var ended atomic.Int64
	results := make([]streamed, all)
	gate := make(chan struct{}, together)
	var wg sync.WaitGroup
	for i := range all {
		gate <- struct{}{}
		if i == all/3 {
			if err := cmds[1].Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			defer func() { <-gate }()
			q := map[string]any{"model": "far", "stream": true, "max_tokens": 40, "temperature": 0, "ignore_eos": true,
				"messages": []map[string]string{{"role": "user", "content": fmt.Sprint("question ", i)}}}
			var err error
			if results[i], err = stream(ctx, front, q); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
			ended.Add(1)
		})
	}
	wg.Wait()
	broken, by := 0, map[string]int{}
	for i, r := range results {
		by[r.by]++
		switch {
		case r.whole && r.err == "":
		case r.by == "replica1" && r.pieces > 0 && strings.Contains(r.err, "the upstream broke off"):
			broken++
		default:
			t.Errorf("request %d ended as %+v", i, r)
		}
	}
	t.Logf("%d of %d streams broke; %v", broken, all, by)
	if broken > together || len(by) != 3 {
		t.Errorf("%d streams broke on the killed replica; requests by replica: %v", broken, by)
	}
}

// TestStickyCachesHit: agents that talk in turns find their conversations in the caches of the replicas, at least twice
// as often as when every turn goes to the next replica.
func TestStickyCachesHit(t *testing.T) {
	rate := map[upstream.Policy]float64{}
	for _, policy := range []upstream.Policy{upstream.RoundRobin, upstream.Sticky} {
		_, urls := replicas(t, 3, "--parallel", "2", "--cache-ram", "7MiB")
		f, err := upstream.New([]upstream.Model{{Name: "far", URLs: urls}}, upstream.Options{Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		prompt, cached := agents(t, f)
		rate[policy] = float64(cached) / float64(prompt)
		t.Logf("%v: %d of %d tokens were cached, %.2f", policy, cached, prompt, rate[policy])
	}
	if rate[upstream.Sticky] < 2*rate[upstream.RoundRobin] {
		t.Errorf("sticky %.2f, round robin %.2f", rate[upstream.Sticky], rate[upstream.RoundRobin])
	}
}

// agents lets a number of agents talk in turns, mixed at random, and returns the tokens of their prompts and how many
// of them were cached.
func agents(t *testing.T, f *upstream.Fleet) (prompt, cached int) {
	const conversations, turns = 48, 4
	rng := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		var b strings.Builder
		for range n {
			fmt.Fprintf(&b, "%c%c ", 'a'+rng.IntN(26), 'a'+rng.IntN(26))
		}
		return b.String()
	}
	history := make([][]map[string]string, conversations)
	var order []int
	for c := range conversations {
		history[c] = []map[string]string{{"role": "system", "content": fmt.Sprintf("Agent of project %d. ", c) + word(20)}}
		for range turns {
			order = append(order, c)
		}
	}
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, c := range order {
		history[c] = append(history[c], map[string]string{"role": "user", "content": word(40)})
		body, err := json.Marshal(map[string]any{"model": "far", "messages": history[c], "max_tokens": 4, "temperature": 0})
		if err != nil {
			t.Fatal(err)
		}
		res, err := f.Send(
			t.Context(),
			upstream.Request{Model: "far", Path: "/v1/chat/completions", Body: body, Key: upstream.Key(body)},
		)
		if err != nil {
			t.Fatal(err)
		}
		var a struct {
			Choices []struct{ Message map[string]any }
			Usage   struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		err = json.NewDecoder(res.Body).Decode(&a)
		res.Body.Close()
		if err != nil || len(a.Choices) != 1 {
			t.Fatalf("status %d: %v", res.Status, err)
		}
		prompt += a.Usage.Prompt
		cached += a.Usage.Details.Cached
		text, _ := a.Choices[0].Message["content"].(string)
		history[c] = append(history[c], map[string]string{"role": "assistant", "content": text})
	}
	return prompt, cached
}
