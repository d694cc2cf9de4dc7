package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newQuantizeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "quantize IN OUT TYPE",
		Short: "Write a GGUF file with smaller weights",
		RunE:  func(cmd *cobra.Command, args []string) error { return errors.New("not finished yet") },
	}
}
