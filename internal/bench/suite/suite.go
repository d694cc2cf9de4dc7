// Package suite holds the prompts that come with the program: beginnings of Go files to be continued,
// and a few questions to be answered. All of them were written for this purpose.
package suite

import (
	"embed"
	"strings"
)

//go:embed code/*.txt
var code embed.FS

// General is a file of questions in the form that bench.ReadPrompts reads.
//
//go:embed general.jsonl
var General []byte

// File is a prompt with a name.
type File struct{ Name, Text string }

// Code returns the beginnings of Go files, sorted by name.
func Code() []File {
	entries, err := code.ReadDir("code")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	var files []File
	for _, e := range entries {
		b, err := code.ReadFile("code/" + e.Name())
		if err != nil {
			panic(err)
		}
		files = append(files, File{strings.TrimSuffix(e.Name(), ".txt"), string(b)})
	}
	return files
}
