package platform

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestFastCores(t *testing.T) {
	for _, c := range []struct {
		name     string
		capacity []string
		want     int
	}{
		{"nothing known", nil, 0},
		{"all alike", []string{"1024", "1024", "1024", "1024"}, 0},
		{"1 prime, 3 large, 4 small", []string{"325", "325", "325", "325", "828", "828", "828", "1024"}, 4},
		{"2 large, 4 small", []string{"485\n", "485\n", "485\n", "485\n", "1024\n", "1024\n"}, 2},
		{"half as fast is fast enough", []string{"512", "512", "1024", "511"}, 3},
		{"more than nine cores", []string{"1024", "1024", "200", "200", "200", "200", "200", "200", "200", "200", "1024"}, 3},
		{"not a number", []string{"1024", "much"}, 0},
		{"empty", []string{"1024", ""}, 0},
	} {
		dir := t.TempDir()
		for i, text := range c.capacity {
			cpu := filepath.Join(dir, fmt.Sprintf("cpu%d", i))
			if err := os.MkdirAll(cpu, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(cpu, "cpu_capacity"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Join(dir, "cpufreq"), 0o755); err != nil { // a neighbour that is no core
			t.Fatal(err)
		}
		if got := fastOf(dir); got != c.want {
			t.Errorf("%s: %d fast cores, want %d", c.name, got, c.want)
		}
	}
}
