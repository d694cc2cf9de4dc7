package platform

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

func fastCores() int {
	if runtime.GOARCH != "arm64" {
		return 0
	}
	return fastOf("/sys/devices/system/cpu")
}

// fastOf counts the cores with at least half of the largest capacity, which Linux says in files below dir; 0 if some
// have none, or if all are fast.
func fastOf(dir string) int {
	files, _ := filepath.Glob(filepath.Join(dir, "cpu[0-9]*", "cpu_capacity"))
	var capacity []int
	most := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return 0
		}
		capacity = append(capacity, n)
		most = max(most, n)
	}
	fast := 0
	for _, n := range capacity {
		if 2*n >= most {
			fast++
		}
	}
	if fast == len(capacity) {
		return 0
	}
	return fast
}
