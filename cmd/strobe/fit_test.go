package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/testkit"
)

// TestFit: the table has a row for each card and a column for each length that the model's context allows; wrong sizes
// and lengths are refused.
func TestFit(t *testing.T) {
	runCommand := func(args ...string) (out, errs string, code int) {
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
		return stdout.String(), stderr.String(), code
	}
	file := testkit.Golden(t, "qwen35/model.gguf")
	out, errs, code := runCommand("fit", "-m", file, "-d", "none", "--memory", "2GiB,460MiB", "--contexts",
		"4096,9999999,512,512")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "weights ") || strings.Count(lines[2], "tokens") != 2 ||
		!strings.HasPrefix(lines[3], "460MiB") || !strings.Contains(lines[3], "no") ||
		!strings.HasPrefix(lines[4], "2GiB") || strings.Count(lines[4], "fits: ") != 2 {
		t.Errorf("the table is\n%s", out)
	}
	out, errs, code = runCommand("fit", "-m", file, "-d", "none", "--memory", "2GiB", "--contexts", "512", "--json")
	var fits []engine.Fit
	if err := json.Unmarshal([]byte(out), &fits); code != exitOK || err != nil || len(fits) != 1 || !fits[0].All ||
		fits[0].Memory != 2<<30 || fits[0].Context != 512 {
		t.Errorf("exit %d, error %v: %s%s", code, err, out, errs)
	}
	for _, c := range []struct{ args, want string }{
		{"fit", "-m"},
		{"fit -m " + file + " --memory much", `"much" is not a size`},
		{"fit -m " + file + " --memory 0", `"0" is not a size`},
		{"fit -m " + file + " --contexts 5,x", `"x" is not a number of tokens`},
		{"fit -m " + file + " --contexts 0", `"0" is not a number of tokens`},
	} {
		if _, errs, code := runCommand(strings.Fields(c.args)...); code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d: %s", c.args, code, errs)
		}
	}
}
