package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/draft"
	"strobe/internal/engine"
	"strobe/internal/model"
	"strobe/internal/safetensors"
)

// parseAccepted reads how many guesses each round keeps.
func parseAccepted(s string, steps int) (accepted []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 || n > steps {
			return nil, usagef("--accept %q: want numbers from 0 to the %d of --steps, such as 2,0,4,1", s, steps)
		}
		accepted = append(accepted, n)
	}
	return accepted, nil
}

// mtpRounds replays rounds of multi-token prediction: all ids but the last are the prompt, each round drafts steps
// tokens, has the target verify them, and keeps as many as it is told, whatever the target says.
func mtpRounds(m *engine.Model, ids []int32, steps int, accepted []int) ([]safetensors.Tensor, error) {
	d, t := m.MTP, m.Target
	if steps > d.Max() {
		return nil, usagef("--steps %d: want 1 to %d", steps, d.Max())
	}
	if len(ids) < 2 {
		return nil, fmt.Errorf("%d token ids; want a prompt and the token after it", len(ids))
	}
	if err := t.Capture(d.Capture()); err != nil {
		return nil, err
	}
	seq, ctx := t.NewSeq(), d.NewSeq()
	defer seq.Close()
	defer ctx.Close()
	// pass runs tokens, of which the first keep are committed.
	pass := func(tokens []int32, keep int) ([]float32, error) {
		out, err := t.Forward([]model.Segment{{Seq: seq, Tokens: tokens, Logits: model.LogitsAll}})
		if err != nil {
			return nil, err
		}
		logits := slices.Clone(t.Backend().Read(out.Logits))
		if err := seq.CommitFirst(keep); err != nil {
			return nil, err
		}
		rows := make([]int32, keep)
		for i := range rows {
			rows[i] = int32(i)
		}
		return logits, d.Extend(out.Features, []draft.Rows{{Seq: ctx, Tokens: tokens[:keep], Rows: rows}})
	}
	for part := range slices.Chunk(ids[:len(ids)-1], m.Chunk()) {
		if _, err := pass(part, len(part)); err != nil {
			return nil, err
		}
	}
	last := ids[len(ids)-1]
	var tensors []safetensors.Tensor
	for r, keep := range accepted {
		tr, err := d.Trace(draft.Request{Seq: ctx, Target: seq, Last: last, N: steps})
		if err != nil {
			return nil, err
		}
		if slices.Contains(tr.Best, -1) {
			return nil, fmt.Errorf("round %d: a guess whose logits are not numbers", r)
		}
		verify, err := pass(append([]int32{last}, tr.Best...), keep+1)
		if err != nil {
			return nil, err
		}
		p := fmt.Sprintf("round%d.", r)
		tensors = append(tensors, floatTensor(p+"h_in", tr.In, steps, t.Hidden),
			floatTensor(p+"h_out", tr.Out, steps, t.Hidden), floatTensor(p+"logits", tr.Logits, steps, t.Vocab),
			intTensor(p+"draft", tr.Best), floatTensor(p+"verify_logits", verify, steps+1, t.Vocab))
		row := verify[keep*t.Vocab:][:t.Vocab]
		last = 0
		for i, v := range row {
			if v > row[last] {
				last = int32(i)
			}
		}
	}
	return tensors, nil
}

func intTensor(name string, v []int32, shape ...int) safetensors.Tensor {
	var data []byte
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, uint32(x))
	}
	if shape == nil {
		shape = []int{len(v)}
	}
	return safetensors.Tensor{Name: name, DType: "I32", Shape: shape, Data: data}
}
