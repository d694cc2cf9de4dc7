package upstream

import (
	"strings"
	"testing"
)

func TestUsageIsRead(t *testing.T) {
	long := strings.Repeat(`data: {"choices":[{"delta":{"content":"\"usage\": word"}}],"usage":null}`+"\n\n", 500)
	for _, c := range []struct {
		name, answer string
		want         Usage
	}{
		{"whole", `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5}}}`,
			Usage{9, 5, 4, 0, 0}},
		{"streamed", long + `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}` + "\n\ndata: [DONE]\n\n",
			Usage{9, 0, 4, 0, 0}},
		{"Anthropic's", `{"usage":{"input_tokens":3,"cache_read_input_tokens":6,"output_tokens":4}}`, Usage{9, 6, 4, 0, 0}},
		{"timings", long + `data: {"timings":{"prompt_n":4,"cache_n":5,"predicted_n":7,"draft_n":6,"draft_n_accepted":3}}`,
			Usage{9, 5, 7, 6, 3}},
		{"the very beginning", `"usage":{"prompt_tokens":9,"completion_tokens":4}`, Usage{9, 0, 4, 0, 0}},
		{"none", long, Usage{}},
		{"cut off", `{"usage":{"prompt_tokens":9`, Usage{}},
		{"empty", "", Usage{}},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			var b tail
			for rest := []byte(c.answer); len(rest) > 0; {
				n := min(piece, len(rest))
				b.add(rest[:n])
				rest = rest[n:]
			}
			if len(b.buf) > 2*maxTail {
				t.Errorf("%s: %d bytes are kept", c.name, len(b.buf))
			}
			if got := b.usage(); got != c.want {
				t.Errorf("%s in pieces of %d: %+v, want %+v", c.name, piece, got, c.want)
			}
		}
	}
}

// TestUsageAtAnyLength: the end of an answer is kept whatever its length.
func TestUsageAtAnyLength(t *testing.T) {
	end := []byte(`{"usage":{"prompt_tokens":9,"completion_tokens":4}}`)
	for pad := 0; pad < 3*maxTail; pad += len(end) / 2 {
		var b tail
		for range pad {
			b.add([]byte("x"))
		}
		for i := range end {
			b.add(end[i : i+1])
		}
		if got := b.usage(); got != (Usage{Prompt: 9, Generated: 4}) {
			t.Fatalf("after %d bytes: %+v", pad, got)
		}
	}
}
