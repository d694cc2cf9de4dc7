package e2e

import (
	"os"
	"os/exec"
	"testing"
)

// TestJavaScript runs the tests in js/ with OpenAI's client for JavaScript. STROBE_JS makes the lack of
// Node a failure.
func TestJavaScript(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		if os.Getenv("STROBE_JS") != "" {
			t.Fatal(err)
		}
		t.Skip("npm is missing: the tests in js need Node and OpenAI's package from its registry")
	}
	for _, args := range [][]string{{"npm", "ci", "--no-audit", "--no-fund", "--silent"},
		{"node", "--test", "openai.test.js"}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = "js"
		cmd.Env = append(os.Environ(), "STROBE_URL="+server, "STROBE_KEY="+key,
			"STROBE_BACK="+back, "STROBE_BACK_KEY="+backKey)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		t.Logf("%s", out)
	}
}
